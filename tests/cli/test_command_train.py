"""`arcvq train`: signals, warnings, longer trainings, --init-from."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arcvq.training import Trainer

Arcvq = Callable[..., Any]
Settings = Callable[..., list[str]]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=["INT", "TERM", "HUP"]
)
def test_signal_saves_checkpoint_and_sets_exit_code(
    number: signal.Signals,
    code: int,
    arcvq: Arcvq,
    tmp_path: Path,
    tiny_settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Trainer.log

    def log_and_signal(trainer: Trainer, outcome: Any) -> None:
        log(trainer, outcome)
        if trainer.position.step == 2:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(Trainer, "log", log_and_signal)
    result = arcvq("train", "sample/vq-vae", *tiny_settings(), "--out", tmp_path / "run", "--quiet")
    assert (result.code, result.output) == (code, "")
    assert f"{tmp_path / 'run'}: stopped at step 2 of 6" in result.errors
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000002"]


def interrupted(*arguments: object, **options: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "place", ["arcvq.cli.build_parser", "arcvq.systems.load_config", "arcvq.systems.config.load_sources"]
)
def test_ctrl_c_before_the_first_step_is_one_line(
    place: str, arcvq: Arcvq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, interrupted)
    result = arcvq("train", "sample/vq-vae", "--out", tmp_path / "run")
    assert (result.code, result.output, result.errors) == (130, "", "arcvq: interrupted\n")
    assert not (tmp_path / "run").exists()


def test_ctrl_c_while_torch_is_imported_is_one_line(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from importlib.abc import MetaPathFinder

class CtrlC(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torch":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
signal.signal(signal.SIGINT, signal.default_int_handler)
from arcvq.cli import main
sys.exit(main())
"""
    words = ["train", "sample/vq-vae", "--out", str(tmp_path / "run")]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "arcvq: interrupted\n")


def test_warning_is_one_line(arcvq: Arcvq, tmp_path: Path, tiny_settings: Settings) -> None:
    command = ["train", "sample/vq-vae", *tiny_settings(), "--quiet", "--out", tmp_path / "run"]
    assert arcvq(*command).code == 0
    for file in (tmp_path / "run" / "training.json", tmp_path / "run" / "checkpoints/step-00000006/state.json"):
        file.unlink()
    result = arcvq_process(*command)
    assert result.returncode == 0
    assert result.stderr.startswith("arcvq: warning: ")
    assert "step-00000003" in result.stderr
    assert result.stderr.count("\n") == 1


def arcvq_process(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "arcvq", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def test_run_is_extended_and_used_for_init(arcvq: Arcvq, tmp_path: Path, tiny_settings: Settings) -> None:
    words = ["train", "sample/vq-vae", *tiny_settings({"training.steps": 2})]
    assert "already" not in arcvq(*words, "--out", tmp_path / "run").output
    longer = [*words, "--training.steps", "4", "--out", tmp_path / "run"]
    assert arcvq(*longer).output.startswith(f"{tmp_path / 'run'}: trained")
    assert arcvq(*longer).output.startswith(f"{tmp_path / 'run'}: already trained")
    result = arcvq(*words, "--init-from", tmp_path / "run", "--out", tmp_path / "second")
    assert result.code == 0
    config = (tmp_path / "second" / "config.yaml").read_text()
    assert f"init_from: {tmp_path / 'run'}" in config
    result = arcvq(*words, "--init-from", tmp_path / "nowhere", "--out", tmp_path / "second")
    assert (result.code, result.errors.count("\n")) == (2, 1)
    assert "training.init_from" in result.errors


def test_setting_without_section_suggests_full_name(arcvq: Arcvq, tmp_path: Path) -> None:
    result = arcvq("train", "sample/vq-vae", "--steps", "5", "--out", tmp_path / "run")
    assert (result.code, result.errors.count("\n")) == (2, 1)
    assert "did you mean training.steps" in result.errors
