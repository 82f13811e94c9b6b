"""Trainings at a time: real ones in processes of their own, made tiny, on a CPU."""

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from arcvq.bench import packing
from arcvq.bench.packing import Training
from arcvq.cli import main
from arcvq.sweep.sharing import PIPES

COMMAND = ["bench", "--suite", "packing", "--device", "cpu", "--limit", "12", "--batch-size", "8", "--seconds", "0.1"]
TINY = [*COMMAND, "--presets", "sample/vq-vae"]


def test_all_are_timed_together_with_mps_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(packing, "AT_A_TIME", (1, 2))
    monkeypatch.setattr(packing, "mps_available", lambda _: True)
    monkeypatch.setenv(PIPES, "/theirs")
    given: list[str] = []

    class Noted(Training):
        def __init__(self, spec: dict[str, Any], environment: Mapping[str, str], log: Path) -> None:
            given.append(environment[PIPES])
            super().__init__(spec, environment, log)

    monkeypatch.setattr(packing, "Training", Noted)
    out = tmp_path / "packing.json"
    assert main([*TINY, "--out", str(out)]) == 0
    document = json.loads(out.read_text())
    rows = document["rows"]
    assert document["suite"] == "packing"
    assert [(row["mps"], row["at_a_time"]) for row in rows] == [(False, 1), (False, 2), (True, 1), (True, 2)]
    for row in rows:
        assert (row["precision"], row["capture"], row["compile"], row["batch_size"]) == ("fp32", "never", False, 8)
        assert len(row["milliseconds"]) == row["at_a_time"]
        assert row["steps_per_second"] == pytest.approx(sum(1e3 / each for each in row["milliseconds"]))
    assert given[2:] == ["/theirs"] * 2
    assert "/theirs" not in given[:2]  # and there is no daemon where they look for one
    said = capsys.readouterr().out
    assert "sample/vq-vae, fp32 eager, batches of 8" in said
    assert "steps/s of all" in said


def test_a_training_that_dies_ends_the_bench_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(packing, "AT_A_TIME", (1,))
    monkeypatch.setattr(Training, "tell", lambda self, _: self.process.kill())
    assert main([*TINY, "--out", str(tmp_path / "packing.json")]) == 2
    assert capsys.readouterr().err == "arcvq: a training of the bench has ended before its time: signal 9\n"
    assert not list(tmp_path.iterdir())
    preset = tmp_path / "mine.yaml"
    preset.write_text("system: vq-vae\ndata: {name: 'folder:nowhere'}\ntraining: {steps: 4}\n")
    assert main([*COMMAND, "--presets", str(preset)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "a bench of training knows the data sets sample, mnist, fashion-mnist, cifar10, not folder:" in line


def test_a_signal_stops_all(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    made: list[Training] = []

    def stop(self: Training, _: object) -> None:
        made.append(self)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(packing, "AT_A_TIME", (1,))
    monkeypatch.setattr(Training, "tell", stop)
    assert main(TINY) == 130
    assert capsys.readouterr().err == "the bench was stopped\n"
    assert made[0].process.returncode is not None


def test_it_has_no_plot_and_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--plot", "packing.png"]) == 2
    assert capsys.readouterr().err.startswith("arcvq: --suite packing has no --plot")
    assert main([*TINY, "--model", "tiny"]) == 2
    assert capsys.readouterr().err.startswith("arcvq: --suite packing has no --model")
