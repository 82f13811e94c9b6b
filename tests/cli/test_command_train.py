"""`arcvq train` as it is stopped, extended and begun from another run."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from arcvq.training.loop import TrainingRun

Run = Callable[..., Any]
Settings = Callable[..., list[str]]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=["INT", "TERM", "HUP"]
)
def test_signal_saves_a_checkpoint_and_sets_the_exit_code(
    number: signal.Signals,
    code: int,
    arcvq: Run,
    tmp_path: Path,
    tiny_settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = TrainingRun.log

    def signalled(run: TrainingRun, outcome: Any) -> None:
        log(run, outcome)
        if run.position.step == 2:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(TrainingRun, "log", signalled)
    said = arcvq("train", "sample/vq-vae", *tiny_settings(), "--out", tmp_path / "run", "--quiet")
    assert (said.code, said.output) == (code, "")
    assert said.errors == f"{tmp_path / 'run'}: stopped at step 2 of 6; the same command goes on\n"
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000002"]


def interrupted(*arguments: object, **options: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "place", ["arcvq.cli.build_parser", "arcvq.systems.load_system", "arcvq.training.loop.load_data"]
)
def test_ctrl_c_before_the_first_step_is_one_line(
    place: str, arcvq: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, interrupted)
    said = arcvq("train", "sample/vq-vae", "--out", tmp_path / "run")
    assert (said.code, said.output, said.errors) == (130, "", "arcvq: interrupted\n")
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


def test_warning_is_one_line_without_a_place_in_the_code(arcvq: Run, tmp_path: Path, tiny_settings: Settings) -> None:
    command = ["train", "sample/vq-vae", *tiny_settings(), "--quiet", "--out", tmp_path / "run"]
    assert arcvq(*command).code == 0
    for file in (tmp_path / "run" / "training.json", tmp_path / "run" / "checkpoints/step-00000006/state.json"):
        file.unlink()
    said = cli_in_a_process(*command)
    assert said.returncode == 0
    assert said.stderr.startswith("arcvq: warning: ")
    assert said.stderr.endswith("training goes on from step-00000003 instead\n")
    assert said.stderr.count("\n") == 1


def cli_in_a_process(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "arcvq", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def test_run_is_extended_and_started_from(arcvq: Run, tmp_path: Path, tiny_settings: Settings) -> None:
    words = ["train", "sample/vq-vae", *tiny_settings({"training.steps": 2})]
    assert "already" not in arcvq(*words, "--out", tmp_path / "run").output
    longer = [*words, "--training.steps", "4", "--out", tmp_path / "run"]
    assert arcvq(*longer).output.startswith(f"{tmp_path / 'run'}: trained")
    assert arcvq(*longer).output.startswith(f"{tmp_path / 'run'}: already trained")
    said = arcvq(*words, "--init-from", tmp_path / "run", "--out", tmp_path / "second")
    assert said.code == 0
    config = (tmp_path / "second" / "config.yaml").read_text()
    assert f"init_from: {tmp_path / 'run'}" in config
    said = arcvq(*words, "--init-from", tmp_path / "nowhere", "--out", tmp_path / "second")
    assert (said.code, said.errors.count("\n")) == (2, 1)
    assert "training.init_from" in said.errors


def test_setting_without_its_section_is_answered_with_its_name(arcvq: Run, tmp_path: Path) -> None:
    said = arcvq("train", "sample/vq-vae", "--steps", "5", "--out", tmp_path / "run")
    assert (said.code, said.errors.count("\n")) == (2, 1)
    assert "did you mean training.steps" in said.errors
