"""A full disk and a diverged training end in one line, and the run can be resumed."""

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from run_records import assert_nothing_half_written, assert_same_run

from arcvq import ArcvqError
from arcvq.data.source import Batch
from arcvq.errors import Diverged
from arcvq.systems import TokenizerConfig, train
from arcvq.training import RunFolder, Trainer
from arcvq.training.environment import device_name
from arcvq.training.monitor import Monitor
from arcvq.training.step import StepResult

MakeConfig = Callable[..., TokenizerConfig]


class FullDisk:
    """A disk that fills after so many flushes, and stays full."""

    def __init__(self, after: int) -> None:
        self.left = after
        self.fsync = os.fsync

    def __call__(self, descriptor: int) -> None:
        if self.left == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.left -= 1
        self.fsync(descriptor)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory, tiny_system: MakeConfig) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    train(tiny_system(), run, quiet=True)
    return run


def flushes(config: TokenizerConfig, run: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    disk = FullDisk(10_000)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", disk)
        train(config, run, quiet=True)
    return 10_000 - disk.left


def test_full_disk_at_any_moment_is_one_line_and_the_run_resumes_once_there_is_space(
    tmp_path: Path, tiny_system: MakeConfig, whole_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_system()
    total = flushes(config, tmp_path / "count", monkeypatch)
    assert total > 20
    for after in range(0, total, 3):
        run = tmp_path / f"full after {after}"
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", FullDisk(after))
            with pytest.raises(ArcvqError) as raised:
                train(config, run, quiet=True)
        assert str(raised.value).startswith(str(run))
        assert str(raised.value).endswith("the disk is full: free some space or choose another --out")
        assert_nothing_half_written(run)
        train(config, run, quiet=True)
        assert_same_run(run, whole_run)


def test_metrics_file_that_cannot_be_written_is_named(
    tmp_path: Path, tiny_system: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter = Monitor.__enter__

    def onto_a_full_disk(monitor: Monitor) -> Monitor:
        enter(monitor)
        monitor._file.close()
        monitor._file = open("/dev/full", "ab")  # noqa: SIM115
        return monitor

    monkeypatch.setattr(Monitor, "__enter__", onto_a_full_disk)
    with pytest.raises(ArcvqError) as raised:
        train(tiny_system(), tmp_path / "run", quiet=True)
    assert str(raised.value) == (
        f"{tmp_path / 'run' / 'metrics.jsonl'}: the disk is full: free some space or choose another --out"
    )


def test_full_disk_under_tensorboard_is_one_line_and_the_run_resumes(
    tmp_path: Path, tiny_system: MakeConfig, whole_run: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    from tensorboard.summary.writer.record_writer import RecordWriter

    write, left = RecordWriter.write, 5

    def write_until_full(writer: Any, data: bytes) -> None:
        nonlocal left
        if left == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        left -= 1
        write(writer, data)

    with monkeypatch.context() as patched:
        patched.setattr(RecordWriter, "write", write_until_full)
        with pytest.raises(ArcvqError, match=r"run/tensorboard.*the disk is full"):
            train(tiny_system(), tmp_path / "run", quiet=True)
    assert capfd.readouterr() == ("", "")
    train(tiny_system(), tmp_path / "run", quiet=True)
    assert_same_run(tmp_path / "run", whole_run)


@pytest.mark.parametrize(
    "changes",
    [
        {"training.learning_rate": 1e30},
        {"training.learning_rate": 1e12, "training.log_every": 5, "training.evaluations": 0},
        {"training.learning_rate": 1e30, "training.accumulate": 2, "training.precision": "bf16"},
        {
            "training.learning_rate": 1e30,
            "training.stages": "[{train: [autoencoder.decoder], steps: 5}]",
            "training.steps": None,
        },
    ],
)
@pytest.mark.parametrize("preset", ["vq-vae", "arcvq-vae"])
def test_diverged_training_is_one_line_and_leaves_no_model(
    preset: str, changes: dict[str, Any], tmp_path: Path, tiny_system: MakeConfig
) -> None:
    with pytest.raises(ArcvqError) as raised:
        train(tiny_system(preset, changes), tmp_path / "run", quiet=True)
    message = str(raised.value)
    assert "diverged" in message
    assert "\n" not in message
    assert not (tmp_path / "run" / "model").exists()
    assert not (tmp_path / "run" / "training.json").exists()
    record = json.loads((tmp_path / "run" / "diverged.json").read_text())
    assert (record["why"], record["device"]) == (message, device_name(torch.device("cpu")))
    assert 0 < record["steps"] <= 6
    assert len(message) < 250


def test_resume_of_a_diverged_training_removes_its_record(
    tmp_path: Path, tiny_system: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(tmp_path / "run")
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "log", lambda self, _: self.refuse_nonfinite(self.position.step == 4))
        with pytest.raises(Diverged):
            train(tiny_system(), run.path, quiet=True)
    assert run.diverged.is_file()
    train(tiny_system(), run.path, quiet=True)
    assert (run.diverged.exists(), run.training.is_file()) == (False, True)


def test_diverged_training_writes_no_checkpoint(
    tmp_path: Path, tiny_system: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiled or captured step does not raise: it counts, and the count is read before a checkpoint is written."""
    step = Trainer.step

    def diverged(trainer: Trainer, batch: Batch) -> StepResult:
        result = step(trainer, batch)
        return replace(result, nonfinite=torch.ones_like(result.nonfinite))

    monkeypatch.setattr(Trainer, "step", diverged)
    run = tmp_path / "run"
    with pytest.raises(ArcvqError, match="diverged before step 3"):
        train(tiny_system(changes={"training.log_every": 1000}), run, quiet=True, stop_after=3)
    assert not list((run / "checkpoints").glob("*"))


def test_images_of_one_colour_are_refused_with_what_to_do(tmp_path: Path, tiny_system: MakeConfig) -> None:
    from PIL import Image

    (tmp_path / "images").mkdir()
    for i in range(4):
        Image.new("L", (28, 28), 7).save(tmp_path / "images" / f"{i}.png")
    changes = {"data.name": f"folder:{tmp_path / 'images'}"}
    with pytest.raises(ArcvqError, match="all of one colour: their variance is 0"):
        train(tiny_system(changes=changes), tmp_path / "run", quiet=True)


def test_images_whose_sides_do_not_fit_the_autoencoder_are_refused(tmp_path: Path, tiny_system: MakeConfig) -> None:
    with pytest.raises(ArcvqError, match="image sides must be multiples of 4, got 30×30"):
        train(tiny_system(changes={"data.image_size": 30}), tmp_path / "run", quiet=True)
