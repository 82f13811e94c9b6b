"""The loop trains any task: regression without images, and an adversarial pair whose second network joins after four steps."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from train_toy import TASKS, make_trainer

from arcvq.errors import ArcvqError, Stopped

HERE = Path(__file__).parent
TIMES = ("seconds", "samples_per_second")
each_task = pytest.mark.parametrize("name", sorted(TASKS))


def lines(run: Path) -> list[dict[str, Any]]:
    read = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMES} for line in read]


def logged(run: Path, key: str) -> list[float]:
    return [line[key] for line in lines(run) if key in line]


def weights(run: Path) -> dict[str, torch.Tensor]:
    (file,) = (run / "model").iterdir()
    return load_file(file)


def assert_same(one: Path, other: Path) -> None:
    assert lines(one) == lines(other)
    left, right = weights(one), weights(other)
    assert left.keys() == right.keys()
    assert all(torch.equal(tensor, right[name]) for name, tensor in left.items())


def assert_close(one: Path, other: Path) -> None:
    for left, right in zip(lines(one), lines(other), strict=True):
        assert left.pop("kind") == right.pop("kind")
        assert left == pytest.approx(right, rel=1e-4, abs=1e-6)


@each_task
def test_training_lowers_the_loss(name: str, tmp_path: Path) -> None:
    make_trainer(name, tmp_path, {"steps": 60}).run()
    key = "error" if name == "regression" else "distance"
    values = logged(tmp_path, key)
    assert values[-1] < 0.5 * values[0]


def test_second_network_learns_and_counts_only_in_its_phase(tmp_path: Path) -> None:
    trainer = make_trainer("pair", tmp_path, {})
    before = {k: v.clone() for k, v in trainer.task.networks["discriminator"].state_dict().items()}
    with pytest.raises(Stopped):
        trainer.run(stop_after=4)
    after = trainer.task.networks["discriminator"].state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    make_trainer("pair", tmp_path, {}).run()
    train = [line for line in lines(tmp_path) if line["kind"] == "train"]
    assert ["hinge" in line for line in train] == [False] * 4 + [True] * 8
    assert ["fooling" in line for line in train] == [False] * 4 + [True] * 8
    assert {"generator_loss", "discriminator_loss", "generator_learning_rate"} <= train[-1].keys()


@each_task
@pytest.mark.parametrize("settings", [{}, {"ema": 0.9, "accumulate": 2}])
def test_stopped_training_goes_on_to_the_same_bits(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    make_trainer(name, tmp_path / "whole", settings).run()
    for stop in (2, 5, 9):  # in each phase, and in the middle of an epoch
        with pytest.raises(Stopped):
            make_trainer(name, tmp_path / "stopped", settings).run(stop_after=stop)
    make_trainer(name, tmp_path / "stopped", settings).run()
    assert_same(tmp_path / "whole", tmp_path / "stopped")


@each_task
def test_killed_training_resumes_to_the_same_bits(name: str, tmp_path: Path) -> None:
    settings = {"steps": 400, "checkpoints": 40}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    command = [sys.executable, str(HERE / "train_toy.py"), name, str(killed), json.dumps(settings)]
    process = subprocess.Popen(command, cwd=HERE, env=os.environ | {"OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 60
    while not list((killed / "checkpoints").glob("step-*")) and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    make_trainer(name, whole, settings).run()
    make_trainer(name, killed, settings).run()
    assert_same(whole, killed)


@each_task
def test_two_processes_give_the_curve_of_one(name: str, tmp_path: Path) -> None:
    settings = {"steps": 9, "device": "cpu"}
    # Batches of 8, 8 and 4 samples, so both processes hold the same number of each.
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command = [*launch, str(HERE / "train_toy.py"), name, str(tmp_path / "two"), json.dumps(settings)]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    make_trainer(name, tmp_path / "one", settings).run()
    assert_close(tmp_path / "two", tmp_path / "one")


@each_task
def test_micro_batches_give_the_curve_of_the_whole_batch(name: str, tmp_path: Path) -> None:
    make_trainer(name, tmp_path / "whole", {}).run()
    make_trainer(name, tmp_path / "parts", {"accumulate": 3}).run()
    assert_close(tmp_path / "parts", tmp_path / "whole")


@each_task
def test_average_of_the_weights_is_what_is_saved_and_evaluated(name: str, tmp_path: Path) -> None:
    settings = {"ema": 0.5, "device": "cpu"}
    trainer = make_trainer(name, tmp_path, settings)
    (network, *_) = trainer.task.networks.values()
    averages = [{key: value.clone() for key, value in network.state_dict().items()}]
    trainer.begin()
    for _, batch in zip(range(12), trainer.batches()):
        trainer.step(batch)
        averages.append({key: 0.5 * averages[-1][key] + 0.5 * value for key, value in network.state_dict().items()})
    make_trainer(name, tmp_path, settings).run()
    saved = weights(tmp_path)
    for key, value in averages[-1].items():
        torch.testing.assert_close(saved[key], value, rtol=1e-5, atol=1e-6)
        assert not torch.equal(saved[key], network.state_dict()[key])


def test_each_network_may_have_a_rate_of_its_own(tmp_path: Path) -> None:
    make_trainer("pair", tmp_path, {"networks": {"discriminator": {"learning_rate": 0.001}}}).run()
    assert set(logged(tmp_path, "discriminator_learning_rate")) == {0.001}
    assert 0.05 in logged(tmp_path, "generator_learning_rate") + logged(tmp_path, "learning_rate")


def test_settings_of_an_unknown_network_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArcvqError, match=r"critic.*generator, discriminator"):
        make_trainer("pair", tmp_path / "run", {"networks": {"critic": {"learning_rate": 0.001}}})
    assert not (tmp_path / "run").exists()


def test_best_weights_are_kept_by_the_metric_of_the_task(tmp_path: Path) -> None:
    make_trainer("pair", tmp_path, {"select": "test-best", "learning_rate": 3.0, "evaluations": 6}).run()
    best = min(logged(tmp_path, "distance"))
    assert best < logged(tmp_path, "distance")[-1]
    with pytest.raises(ArcvqError, match="no metric to select by"):
        make_trainer("regression", tmp_path / "other", {"select": "test-best"}).run()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@each_task
def test_captured_steps_are_one_graph_per_phase_and_give_the_same_bits(name: str, tmp_path: Path) -> None:
    settings = {"steps": 12, "learning_rate": 2**-5}
    trainer = make_trainer(name, tmp_path / "captured", {**settings, "capture": "always"})
    trainer.run()
    shapes = 2  # the last batch of an epoch is smaller
    assert len(trainer.step_fn.recordings) == shapes * (2 if name == "pair" else 1)
    make_trainer(name, tmp_path / "eager", {**settings, "capture": "never"}).run()
    assert_same(tmp_path / "captured", tmp_path / "eager")
