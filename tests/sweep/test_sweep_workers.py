"""One process, one command after another: each as if it were the first."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from arcvq.cli import main
from arcvq.sweep.workers import TRAINING, Worker

Settings = Callable[..., list[str]]


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    made = Worker(TRAINING, tmp_path / "workers.log")
    yield made
    made.stop()
    made.wait()


def outcome(worker: Worker, words: Sequence[str], log: Path) -> int:
    worker.start(words, log)
    return ended(worker)


def ended(worker: Worker) -> int:
    until = time.monotonic() + 90
    while (code := worker.poll()) is None and time.monotonic() < until:
        time.sleep(0.02)
    assert code is not None
    return code


def wait_for_steps(run: Path) -> None:
    metrics, until = run / "metrics.jsonl", time.monotonic() + 90
    while not (metrics.exists() and '"train"' in metrics.read_text()) and time.monotonic() < until:
        time.sleep(0.05)


def test_a_second_training_is_the_same_as_alone(worker: Worker, tmp_path: Path, tiny_settings: Settings) -> None:
    def words(name: str, preset: str) -> list[str]:
        return ["train", f"sample/{preset}", "--quiet", *tiny_settings(), "--out", str(tmp_path / name)]

    assert outcome(worker, words("first", "vq-vae"), tmp_path / "first.log") == 0
    assert outcome(worker, words("second", "arcvq-vae"), tmp_path / "second.log") == 0
    assert main(words("alone", "arcvq-vae")) == 0
    weights = [next((tmp_path / name / "model").glob("*.safetensors")).read_bytes() for name in ("second", "alone")]
    assert weights[0] == weights[1]
    assert str(tmp_path / "second") in (tmp_path / "second.log").read_text()
    assert str(tmp_path / "second") not in (tmp_path / "first.log").read_text()
    assert worker.process.poll() is None


def test_it_has_the_environment_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "noting.py").write_text("import os; open(os.environ['NOTE'], 'w').write('here')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    made = Worker(["noting"], tmp_path / "workers.log", {"PYTHONPATH": path, "NOTE": str(tmp_path / "note")})
    assert made.process.stdin is not None
    made.process.stdin.close()
    made.wait()
    assert (tmp_path / "note").read_text() == "here"


def test_it_forgets_after_each_training(tmp_path: Path, tiny_settings: Settings) -> None:
    (tmp_path / "noting.py").write_text(
        "import os, torch; torch.compiler.reset = lambda: open(os.environ['NOTE'], 'a').write('again ')"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    made = Worker(["noting"], tmp_path / "workers.log", {"PYTHONPATH": path, "NOTE": str(tmp_path / "note")})
    for name in ("first", "second"):
        words = ["train", "sample/vq-vae", "--quiet", *tiny_settings(), "--out", str(tmp_path / name)]
        assert outcome(made, words, tmp_path / "log") == 0
    assert made.process.stdin is not None
    made.process.stdin.close()
    made.wait()
    assert (tmp_path / "note").read_text() == "again again "


def test_a_failure_is_told_and_is_the_last(worker: Worker, tmp_path: Path) -> None:
    assert outcome(worker, ["train", "sample/nothing", "--out", str(tmp_path / "run")], tmp_path / "log") == 2
    assert "unknown preset" in (tmp_path / "log").read_text()
    assert worker.process.wait(30) == 2


def test_a_killed_worker_is_told(worker: Worker, tmp_path: Path, tiny_settings: Settings) -> None:
    settings = tiny_settings({"training.steps": 100_000})
    worker.start(["train", "sample/vq-vae", "--quiet", *settings, "--out", str(tmp_path / "run")], tmp_path / "log")
    os.kill(worker.process.pid, signal.SIGKILL)
    assert ended(worker) == -signal.SIGKILL


def test_a_training_that_is_stopped_saves(worker: Worker, tmp_path: Path, tiny_settings: Settings) -> None:
    words = ["train", "sample/vq-vae", "--quiet", *tiny_settings({"training.steps": 100_000})]
    worker.start([*words, "--out", str(tmp_path / "run")], tmp_path / "log")
    wait_for_steps(tmp_path / "run")
    worker.stop()
    assert ended(worker) == 130
    check_saved(tmp_path / "run")


def test_a_training_saves_when_the_sweep_is_gone(worker: Worker, tmp_path: Path, tiny_settings: Settings) -> None:
    words = ["train", "sample/vq-vae", "--quiet", *tiny_settings({"training.steps": 100_000})]
    worker.start([*words, "--out", str(tmp_path / "run")], tmp_path / "log")
    wait_for_steps(tmp_path / "run")
    assert worker.process.stdin is not None
    worker.process.stdin.close()  # as the death of the sweep does
    assert ended(worker) == 130
    check_saved(tmp_path / "run")


def check_saved(run: Path) -> None:
    (saved, *_) = (run / "checkpoints").glob("step-*")
    assert json.loads((saved / "state.json").read_text())["position"]["step"] > 0
