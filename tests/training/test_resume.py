"""A run that was stopped or killed and then resumed is bit for bit the run that was not."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_records import assert_nothing_half_written, assert_same_run, assert_same_tensors, read_lines

from arcvq import ArcvqError
from arcvq.errors import Stopped
from arcvq.systems import TokenizerConfig, train
from arcvq.tasks import tokenizer as tokenizer_task
from arcvq.training import Trainer
from arcvq.training import trainer as trainer_module

MakeConfig = Callable[..., TokenizerConfig]

# An epoch of four batches whose last is short; checkpoints after steps 5 and 10.
LENGTH = {"data.limit": 56, "training.steps": 10}
# Everything that a resumed run could get wrong: random numbers, micro-batches, a schedule, a start that looks at data.
EVERYTHING = {
    **LENGTH,
    "quantizer.restart": "{decay: 0.5, threshold: 0.9}",
    "quantizer.init": "kmeans",
    "quantizer.arc.schedule": "adaptive",
    "training.accumulate": 3,
    "training.schedule": "cosine",
    "training.warmup_steps": 3,
    "training.gradient_clip": 1.0,
}
STAGES = {
    **LENGTH,
    "training.steps": None,
    "training.stages": "[{train: [autoencoder.encoder, quantizer], steps: 5}, "
    "{train: [autoencoder.decoder], epochs: 1, learning_rate: 0.01}]",
}
CASES = {"plain": LENGTH, "everything": EVERYTHING, "stages": STAGES}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, tiny_system: MakeConfig) -> dict[str, Path]:
    """One run of each kind that nothing stopped."""
    runs = {}
    for name, changes in CASES.items():
        runs[name] = tmp_path_factory.mktemp("uninterrupted") / "run"
        train(tiny_system(changes=changes), runs[name], quiet=True)
    return runs


def stop_at(config: TokenizerConfig, run: Path, step: int) -> None:
    with pytest.raises(Stopped, match=rf"stopped at step {step} of \d+; the same command goes on"):
        train(config, run, quiet=True, stop_after=step)


@pytest.mark.parametrize(
    ("case", "stops"),
    [
        pytest.param("plain", [2], id="plain"),
        pytest.param("everything", [1], id="first step"),
        pytest.param("everything", [2], id="middle of an epoch"),
        pytest.param("everything", [4], id="end of an epoch"),
        pytest.param("everything", [5], id="at a checkpoint"),
        pytest.param("everything", [10], id="last step"),
        pytest.param("everything", [2, 3, 7], id="three times"),
    ],
)
def test_stopped_run_resumes_to_the_same_bits(
    case: str, stops: list[int], uninterrupted: dict[str, Path], tmp_path: Path, tiny_system: MakeConfig
) -> None:
    config = tiny_system(changes=CASES[case])
    for step in stops:
        stop_at(config, tmp_path / "run", step)
        assert not (tmp_path / "run" / "training.json").exists()
    train(config, tmp_path / "run", quiet=True)
    assert_same_run(tmp_path / "run", uninterrupted[case])
    assert_nothing_half_written(tmp_path / "run")


@pytest.mark.parametrize("step", [3, 5, 6])
def test_stages_resume_within_and_between(
    step: int, uninterrupted: dict[str, Path], tmp_path: Path, tiny_system: MakeConfig
) -> None:
    config = tiny_system(changes=STAGES)
    stop_at(config, tmp_path / "run", step)
    train(config, tmp_path / "run", quiet=True)
    assert_same_run(tmp_path / "run", uninterrupted["stages"])


@pytest.mark.parametrize(
    ("preset", "step", "changes"),
    [
        ("vq-vae-ema-samp", 2, {"quantizer.restart": "{decay: 0.5, threshold: 0.9}"}),
        ("cvq-vae", 2, {"quantizer.anchor": "probrandom"}),
        ("cvq-vae", 2, {"quantizer.anchor": "random", "quantizer.contrastive": "{weight: 1.0}"}),
        ("simvq-samp", 2, {}),
        ("hvq-vae", 2, {}),
        ("hvq-vae", 3, {}),
        ("hvq-vae", 5, {"quantizer.revival": "{every: 1, threshold: 1.0}"}),
    ],
)
def test_every_system_resumes_to_the_same_bits(
    preset: str, step: int, changes: dict[str, Any], tmp_path: Path, tiny_system: MakeConfig
) -> None:
    config = tiny_system(preset, changes)
    train(config, tmp_path / "whole", quiet=True)
    stop_at(config, tmp_path / "run", step)
    train(config, tmp_path / "run", quiet=True)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_resume_keeps_the_best_weights_seen_before_the_stop(tmp_path: Path, tiny_system: MakeConfig) -> None:
    # A learning rate that ruins what the first steps learnt: the best evaluation is an early one.
    changes = {**LENGTH, "training.select": "test-best", "training.evaluations": 10, "training.learning_rate": 0.1}
    config = tiny_system("arcvq-vae", changes)
    train(config, tmp_path / "whole", quiet=True)
    stop_at(config, tmp_path / "run", 8)
    train(config, tmp_path / "run", quiet=True)
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    errors = {line["step"]: line["mse"] for line in read_lines(tmp_path / "run") if line["kind"] == "eval"}
    best = min(errors, key=errors.__getitem__)
    assert best < 8
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert f"lowest mse on the test images of sample, at step {best}" in card


def test_torn_line_of_metrics_is_dropped_and_lost_lines_are_written_again(
    uninterrupted: dict[str, Path], tmp_path: Path, tiny_system: MakeConfig
) -> None:
    config = tiny_system(changes=EVERYTHING)
    stop_at(config, tmp_path / "run", 6)
    metrics = tmp_path / "run" / "metrics.jsonl"
    later = next(line for line in read_lines(uninterrupted["everything"]) if line["step"] == 7)
    for torn in (b'{"kind": "train", "st', b"12", b"{}", b"[]", b'"step"', b"\xff\xfe", b"\0\0\0"):
        with metrics.open("ab") as file:
            file.write(json.dumps(later).encode() + b"\n" + torn)
        stop_at(config, tmp_path / "run", 7)
        steps = [line["step"] for line in read_lines(tmp_path / "run")]
        assert steps == sorted(steps)
        # Back to step 6 for the next one.
        shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000007")
    train(config, tmp_path / "run", quiet=True)
    assert_same_run(tmp_path / "run", uninterrupted["everything"])


def killed_in_child(config: TokenizerConfig, run: Path, arrange: Callable[[], None]) -> None:
    """Train in a forked process in which `arrange` has planted a kill."""
    child = os.fork()
    if child == 0:
        try:
            arrange()
            train(config, run, quiet=True)
        finally:
            os._exit(3)  # only when the kill did not come
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at_call(target: Any, name: str, count: int, *, before: bool = True) -> Callable[[], None]:
    """Plant a kill before (or after) the count-th call of a function."""

    def arrange() -> None:
        original, calls = getattr(target, name), 0

        def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == count and before:
                kill()
            result = original(*arguments, **options)
            if calls == count:
                kill()
            return result

        setattr(target, name, counted)

    return arrange


@pytest.mark.parametrize(
    "arrange",
    [
        pytest.param(kill_at_call(Trainer, "step", 3), id="before the first checkpoint"),
        pytest.param(kill_at_call(Trainer, "log", 8, before=False), id="after a line was logged"),
        pytest.param(kill_at_call(os, "fsync", 25), id="while files are flushed"),
        pytest.param(kill_at_call(tokenizer_task, "save_codebook", 3), id="during an evaluation"),
        pytest.param(kill_at_call(Trainer, "save", 2), id="before a checkpoint"),
        pytest.param(kill_at_call(Trainer, "save", 1, before=False), id="after a checkpoint"),
        pytest.param(kill_at_call(Trainer, "finish", 1), id="before the model is written"),
        pytest.param(kill_at_call(trainer_module, "write_json", 1), id="before the record is written"),
    ],
)
def test_killed_run_resumes_to_the_same_bits(
    arrange: Callable[[], None], uninterrupted: dict[str, Path], tmp_path: Path, tiny_system: MakeConfig
) -> None:
    config = tiny_system(changes=EVERYTHING)
    killed_in_child(config, tmp_path / "run", arrange)
    train(config, tmp_path / "run", quiet=True)
    assert_same_run(tmp_path / "run", uninterrupted["everything"])
    assert_nothing_half_written(tmp_path / "run")


@pytest.fixture(scope="module")
def long_changes() -> dict[str, Any]:
    return {"training.steps": 200, "training.checkpoints": 20, "training.evaluations": 2}


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory, tiny_system: MakeConfig, long_changes: dict[str, Any]) -> Path:
    run = tmp_path_factory.mktemp("long") / "run"
    train(tiny_system(changes=long_changes), run, quiet=True)
    return run


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_signal_to_the_command_loses_nothing(
    number: signal.Signals,
    tmp_path: Path,
    tiny_system: MakeConfig,
    tiny_settings: Callable[..., list[str]],
    long_changes: dict[str, Any],
    long_run: Path,
) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "arcvq", "train", "sample/arcvq-vae", "--out", str(run), "--quiet"]
    process = subprocess.Popen([*command, *tiny_settings(long_changes)], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 100
    while not list(run.glob("checkpoints/step-*")):
        assert process.poll() is None, process.stderr
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert not (run / "training.json").exists()
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert said.startswith(f"{run}: stopped at step ")
        assert "of 200" in said
        assert_nothing_half_written(run)
    else:
        assert process.returncode == -signal.SIGKILL
    train(tiny_system(changes=long_changes), run, quiet=True)
    assert_same_run(run, long_run)
    assert_nothing_half_written(run)


def damage(run: Path, step: int, file: str, content: bytes | None) -> None:
    """Replace a file of a checkpoint; None: cut it after 100 bytes."""
    path = run / "checkpoints" / f"step-{step:08d}" / file
    path.write_bytes(path.read_bytes()[:100] if content is None else content)


DAMAGES = [
    ("tokenizer.safetensors", None),
    ("tokenizer-optimizer.safetensors", None),
    ("random-0.safetensors", None),
    ("random-0.safetensors", b""),
    ("state.json", b'{"position"'),
    ("state.json", b"[]"),
    ("state.json", b'{"position": {"steps": 2}, "optimizers": {}}'),
    ("state.json", b'{"position": {"step": "two"}, "optimizers": {}}'),
    ("state.json", b'{"position": null, "optimizers": {}}'),
    ("state.json", b'{"position": {"step": 2}, "optimizers": 3}'),
]


@pytest.mark.parametrize(("file", "content"), DAMAGES)
def test_resume_skips_an_unreadable_newest_checkpoint_with_a_warning(
    uninterrupted: dict[str, Path], tmp_path: Path, tiny_system: MakeConfig, file: str, content: bytes | None
) -> None:
    config = tiny_system(changes=LENGTH)
    stop_at(config, tmp_path / "run", 2)
    stop_at(config, tmp_path / "run", 3)
    damage(tmp_path / "run", 3, file, content)
    with pytest.warns(UserWarning, match=rf"step-00000003.*{file}.*goes on from step-00000002"):
        train(config, tmp_path / "run", quiet=True)
    assert_same_run(tmp_path / "run", uninterrupted["plain"])
    assert_nothing_half_written(tmp_path / "run")


def test_unreadable_checkpoint_is_removed_once_an_earlier_step_is_saved_again(
    tmp_path: Path, tiny_system: MakeConfig
) -> None:
    config = tiny_system(changes=LENGTH)
    for step in (2, 4):
        stop_at(config, tmp_path / "run", step)
    (tmp_path / "run" / "checkpoints" / "step-00000004" / "state.json").unlink()
    with pytest.warns(UserWarning, match=r"state.json is missing"):
        stop_at(config, tmp_path / "run", 3)
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["step-00000002", "step-00000003"]


@pytest.mark.parametrize(("file", "content"), DAMAGES)
def test_run_without_a_readable_checkpoint_is_refused_and_stays_as_it_is(
    tmp_path: Path, tiny_system: MakeConfig, file: str, content: bytes | None
) -> None:
    config, run = tiny_system(changes=LENGTH), tmp_path / "run"
    stop_at(config, run, 2)
    damage(run, 2, file, content)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(ArcvqError, match=rf"no checkpoint can be read: .*{file}") as raised:
        train(config, run, quiet=True)
    assert "\n" not in str(raised.value)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_checkpoint_of_another_model_is_refused(tmp_path: Path, tiny_system: MakeConfig) -> None:
    stop_at(tiny_system(changes=LENGTH), tmp_path / "run", 2)
    other = tiny_system(changes={**LENGTH, "quantizer.codebook_size": 16})
    stop_at(other, tmp_path / "other", 2)
    foreign = tmp_path / "other" / "checkpoints" / "step-00000002" / "tokenizer.safetensors"
    damage(tmp_path / "run", 2, "tokenizer.safetensors", foreign.read_bytes())
    with pytest.raises(ArcvqError) as raised:
        train(tiny_system(changes=LENGTH), tmp_path / "run", quiet=True)
    assert "step-00000002: does not fit this configuration" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_only_the_newest_two_checkpoints_are_kept(tmp_path: Path, tiny_system: MakeConfig) -> None:
    train(tiny_system(changes={"training.checkpoints": 6}), tmp_path / "run", quiet=True)
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["step-00000005", "step-00000006"]


def test_one_seed_gives_the_same_run_and_another_seed_another(tmp_path: Path, tiny_system: MakeConfig) -> None:
    for run, seed in (("one", 1), ("same", 1), ("other", 2)):
        train(tiny_system(changes={"training.seed": seed}), tmp_path / run, quiet=True)
    assert_same_run(tmp_path / "one", tmp_path / "same")
    with pytest.raises(AssertionError):
        assert_same_tensors(*(tmp_path / run / "model" / "model.safetensors" for run in ("one", "other")))


def test_resume_with_other_data_is_refused(tmp_path: Path, tiny_system: MakeConfig) -> None:
    from PIL import Image

    folder, run = tmp_path / "images" / "train", tmp_path / "run"
    for split in ("train", "test"):
        (folder.parent / split).mkdir(parents=True)
        for i in range(8):
            Image.new("L", (28, 28), 30 * i).save(folder.parent / split / f"{i}.png")
    config = tiny_system("vq-vae", {"data.name": f"folder:{folder.parent}"})
    stop_at(config, run, 2)
    (folder / "7.png").unlink()
    with pytest.raises(ArcvqError, match="began with 8 training samples and now finds 7"):
        train(config, run, quiet=True)
