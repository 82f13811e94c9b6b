"""A run that was stopped or killed, and went on, is bit for bit the run that never was."""

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
from arcvq.systems import System
from arcvq.training import Stopped, train
from arcvq.training import loop as training_loop

MakeSystem = Callable[..., System]

# An epoch of four batches whose last is short; checkpoints after steps 5 and 10.
LENGTH = {"data.limit": 56, "training.steps": 10}
# Everything that a resumed run could get wrong: random numbers, micro-batches, a schedule, a start that looks at data.
EVERYTHING = {
    **LENGTH,
    "quantizer.restart": "{decay: 0.5, threshold: 0.9}",
    "quantizer.start": "kmeans",
    "quantizer.arc.schedule": "adaptive",
    "training.accumulate": 3,
    "training.schedule": "cosine",
    "training.warmup_steps": 3,
    "training.gradient_clip": 1.0,
}
STAGES = {
    **LENGTH,
    "training.steps": None,
    "training.stages": "[{train: [encoder, quantizer], steps: 5}, {train: [decoder], epochs: 1, learning_rate: 0.01}]",
}
CASES = {"plain": LENGTH, "everything": EVERYTHING, "stages": STAGES}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, tiny_system: MakeSystem) -> dict[str, Path]:
    """One run of each kind that nothing stopped."""
    runs = {}
    for name, changes in CASES.items():
        runs[name] = tmp_path_factory.mktemp("uninterrupted") / "run"
        train(tiny_system(changes=changes), runs[name], quiet=True)
    return runs


def stop_at(system: System, run: Path, step: int) -> None:
    with pytest.raises(Stopped, match=rf"stopped at step {step} of \d+; the same command goes on"):
        train(system, run, quiet=True, stop_after=step)


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
def test_a_stopped_run_goes_on_to_the_same_end(
    case: str, stops: list[int], uninterrupted: dict[str, Path], tmp_path: Path, tiny_system: MakeSystem
) -> None:
    system = tiny_system(changes=CASES[case])
    for step in stops:
        stop_at(system, tmp_path / "run", step)
        assert not (tmp_path / "run" / "training.json").exists()
    train(system, tmp_path / "run", quiet=True)
    assert_same_run(tmp_path / "run", uninterrupted[case])
    assert_nothing_half_written(tmp_path / "run")


@pytest.mark.parametrize("step", [3, 5, 6])
def test_stages_resume_within_and_between(
    step: int, uninterrupted: dict[str, Path], tmp_path: Path, tiny_system: MakeSystem
) -> None:
    system = tiny_system(changes=STAGES)
    stop_at(system, tmp_path / "run", step)
    train(system, tmp_path / "run", quiet=True)
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
def test_every_rival_goes_on_to_the_same_end(
    preset: str, step: int, changes: dict[str, Any], tmp_path: Path, tiny_system: MakeSystem
) -> None:
    system = tiny_system(preset, changes)
    train(system, tmp_path / "whole", quiet=True)
    stop_at(system, tmp_path / "run", step)
    train(system, tmp_path / "run", quiet=True)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_the_best_weights_seen_before_a_stop_are_remembered(tmp_path: Path, tiny_system: MakeSystem) -> None:
    # A learning rate that ruins what the first steps learnt: the best look is an early one.
    changes = {**LENGTH, "training.select": "test-best", "training.evaluations": 10, "training.learning_rate": 0.1}
    system = tiny_system("arcvq-vae", changes)
    train(system, tmp_path / "whole", quiet=True)
    stop_at(system, tmp_path / "run", 8)
    train(system, tmp_path / "run", quiet=True)
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    errors = {line["step"]: line["mse"] for line in read_lines(tmp_path / "run") if line["kind"] == "eval"}
    best = min(errors, key=errors.__getitem__)
    assert best < 8
    assert f"lowest test MSE, at step {best}" in (tmp_path / "run" / "model" / "README.md").read_text()


def test_what_a_kill_tore_is_dropped_and_what_it_lost_is_written_again(
    uninterrupted: dict[str, Path], tmp_path: Path, tiny_system: MakeSystem
) -> None:
    system = tiny_system(changes=EVERYTHING)
    stop_at(system, tmp_path / "run", 6)
    metrics = tmp_path / "run" / "metrics.jsonl"
    later = next(line for line in read_lines(uninterrupted["everything"]) if line["step"] == 7)
    for torn in (b'{"kind": "train", "st', b"12", b"{}", b"[]", b'"step"', b"\xff\xfe", b"\0\0\0"):
        with metrics.open("ab") as file:
            file.write(json.dumps(later).encode() + b"\n" + torn)
        stop_at(system, tmp_path / "run", 7)
        steps = [line["step"] for line in read_lines(tmp_path / "run")]
        assert steps == sorted(steps)
        # Back to step 6 for the next one.
        shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000007")
    train(system, tmp_path / "run", quiet=True)
    assert_same_run(tmp_path / "run", uninterrupted["everything"])


def killed_in_child(system: System, run: Path, arrange: Callable[[], None]) -> None:
    """Train in a forked process in which `arrange` has planted a kill."""
    child = os.fork()
    if child == 0:
        try:
            arrange()
            train(system, run, quiet=True)
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
        pytest.param(kill_at_call(training_loop.TrainingRun, "step", 3), id="before the first checkpoint"),
        pytest.param(kill_at_call(training_loop.TrainingRun, "log", 8, before=False), id="after a line was logged"),
        pytest.param(kill_at_call(os, "fsync", 25), id="while files are flushed"),
        pytest.param(kill_at_call(training_loop, "save_codebook", 3), id="in the middle of a look"),
        pytest.param(kill_at_call(training_loop.TrainingRun, "save", 2), id="before a checkpoint"),
        pytest.param(kill_at_call(training_loop.TrainingRun, "save", 1, before=False), id="after a checkpoint"),
        pytest.param(kill_at_call(training_loop.TrainingRun, "finish", 1), id="before the model is written"),
        pytest.param(kill_at_call(training_loop, "write_json", 1), id="before the record is written"),
    ],
)
def test_a_killed_run_goes_on_to_the_same_end(
    arrange: Callable[[], None], uninterrupted: dict[str, Path], tmp_path: Path, tiny_system: MakeSystem
) -> None:
    system = tiny_system(changes=EVERYTHING)
    killed_in_child(system, tmp_path / "run", arrange)
    train(system, tmp_path / "run", quiet=True)
    assert_same_run(tmp_path / "run", uninterrupted["everything"])
    assert_nothing_half_written(tmp_path / "run")


@pytest.fixture(scope="module")
def long_changes() -> dict[str, Any]:
    return {"training.steps": 200, "training.checkpoints": 20, "training.evaluations": 2}


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory, tiny_system: MakeSystem, long_changes: dict[str, Any]) -> Path:
    run = tmp_path_factory.mktemp("long") / "run"
    train(tiny_system(changes=long_changes), run, quiet=True)
    return run


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_signal_from_outside_loses_nothing(
    number: signal.Signals,
    tmp_path: Path,
    tiny_system: MakeSystem,
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
    ("model.safetensors", None),
    ("optimizer.safetensors", None),
    ("random-0.safetensors", None),
    ("random-0.safetensors", b""),
    ("state.json", b'{"position"'),
    ("state.json", b"[]"),
    ("state.json", b'{"position": {"steps": 2}, "optimizer": {}}'),
    ("state.json", b'{"position": {"step": "two"}, "optimizer": {}}'),
    ("state.json", b'{"position": null, "optimizer": {}}'),
    ("state.json", b'{"position": {"step": 2}, "optimizer": 3}'),
]


@pytest.mark.parametrize(("file", "content"), DAMAGES)
def test_unreadable_newest_checkpoint_is_passed_over_with_a_warning(
    uninterrupted: dict[str, Path], tmp_path: Path, tiny_system: MakeSystem, file: str, content: bytes | None
) -> None:
    system = tiny_system(changes=LENGTH)
    stop_at(system, tmp_path / "run", 2)
    stop_at(system, tmp_path / "run", 3)
    damage(tmp_path / "run", 3, file, content)
    with pytest.warns(UserWarning, match=rf"step-00000003.*{file}.*goes on from step-00000002"):
        train(system, tmp_path / "run", quiet=True)
    assert_same_run(tmp_path / "run", uninterrupted["plain"])
    assert_nothing_half_written(tmp_path / "run")


def test_unreadable_checkpoint_goes_once_an_earlier_step_is_saved_again(
    tmp_path: Path, tiny_system: MakeSystem
) -> None:
    system = tiny_system(changes=LENGTH)
    for step in (2, 4):
        stop_at(system, tmp_path / "run", step)
    (tmp_path / "run" / "checkpoints" / "step-00000004" / "state.json").unlink()
    with pytest.warns(UserWarning, match=r"state.json is missing"):
        stop_at(system, tmp_path / "run", 3)
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["step-00000002", "step-00000003"]


@pytest.mark.parametrize(("file", "content"), DAMAGES)
def test_run_without_a_readable_checkpoint_is_refused_and_stays_as_it_is(
    tmp_path: Path, tiny_system: MakeSystem, file: str, content: bytes | None
) -> None:
    system, run = tiny_system(changes=LENGTH), tmp_path / "run"
    stop_at(system, run, 2)
    damage(run, 2, file, content)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(ArcvqError, match=rf"no checkpoint can be read: .*{file}") as raised:
        train(system, run, quiet=True)
    assert "\n" not in str(raised.value)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_checkpoint_of_another_model_is_answered_in_one_line(tmp_path: Path, tiny_system: MakeSystem) -> None:
    stop_at(tiny_system(changes=LENGTH), tmp_path / "run", 2)
    other = tiny_system(changes={**LENGTH, "quantizer.codebook_size": 16})
    stop_at(other, tmp_path / "other", 2)
    foreign = tmp_path / "other" / "checkpoints" / "step-00000002" / "model.safetensors"
    damage(tmp_path / "run", 2, "model.safetensors", foreign.read_bytes())
    with pytest.raises(ArcvqError) as raised:
        train(tiny_system(changes=LENGTH), tmp_path / "run", quiet=True)
    assert "step-00000002: does not fit this configuration" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_only_the_newest_two_checkpoints_are_kept(tmp_path: Path, tiny_system: MakeSystem) -> None:
    train(tiny_system(changes={"training.checkpoints": 6}), tmp_path / "run", quiet=True)
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["step-00000005", "step-00000006"]


def test_two_runs_of_one_seed_are_the_same_and_of_two_seeds_are_not(tmp_path: Path, tiny_system: MakeSystem) -> None:
    for run, seed in (("one", 1), ("same", 1), ("other", 2)):
        train(tiny_system(changes={"training.seed": seed}), tmp_path / run, quiet=True)
    assert_same_run(tmp_path / "one", tmp_path / "same")
    with pytest.raises(AssertionError):
        assert_same_tensors(*(tmp_path / run / "model" / "model.safetensors" for run in ("one", "other")))


def test_a_run_does_not_go_on_with_other_data(
    tmp_path: Path, tiny_system: MakeSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, load = tiny_system("vq-vae"), training_loop.load_data
    with pytest.raises(Stopped):
        train(system, tmp_path / "run", quiet=True, stop_after=2)

    def fewer(*arguments: Any) -> Any:
        images, test = load(*arguments)
        return type(images)(images.name, images.pixels[:-1]), test

    monkeypatch.setattr(training_loop, "load_data", fewer)
    with pytest.raises(ArcvqError, match=r"64 training images .* 63"):
        train(system, tmp_path / "run", quiet=True)
