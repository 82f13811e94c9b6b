"""How a training is launched: devices and processes."""

import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_simple_launcher_cmd_env

from arcvq.training import TrainingConfig
from arcvq.training.launch import make_accelerator


def launched_by_accelerate(processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment that `accelerate launch --cpu --num_processes N` gives to the process it starts."""
    words = ["--cpu", "--num_processes", str(processes), "-m", "arcvq"]
    arguments, *_ = _validate_launch_command(launch_command_parser().parse_args(words))
    _, environment = prepare_simple_launcher_cmd_env(arguments)
    for name in environment.keys() - os.environ.keys():
        monkeypatch.setenv(name, environment[name])


def test_one_process_instead_of_two_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    launched_by_accelerate(2, monkeypatch)
    with pytest.warns(UserWarning, match="torchrun") as warned:
        make_accelerator(TrainingConfig(steps=1))
    assert len(warned) == 1


@pytest.mark.parametrize("launched", [True, False])
def test_one_process_as_asked_for_is_not_warned_of(launched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if launched:
        launched_by_accelerate(1, monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_accelerator(TrainingConfig(steps=1))


def test_slurm_script_of_the_guide_trains_with_all_tasks(
    tmp_path: Path, tiny_settings: Callable[..., list[str]]
) -> None:
    """With a stand-in for SLURM: `srun` starts its command once for each of two tasks."""
    page = Path(__file__).parents[2] / "docs" / "scale.md"
    script = re.search(r"<<'END'\n(.*?)^END$", page.read_text(encoding="utf-8"), re.M | re.S)
    assert script
    files = {
        "train.sbatch": script[1],
        "scontrol": "#!/bin/bash\necho 127.0.0.1\n",
        "srun": "\n".join(
            [
                "#!/bin/bash",
                'for i in 0 1; do SLURM_PROCID=$i SLURM_LOCALID=$i "$@" & tasks+=($!); done',
                'wait "${tasks[0]}" && wait "${tasks[1]}"',
            ]
        ),
        "python": f'#!/bin/bash\nexec {sys.executable} "$@"\n',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_JOB_NODELIST": "localhost", "SLURM_JOB_ID": str(os.getpid()), "SLURM_NTASKS": "2"}
    arguments = [
        "sample/arcvq-vae",
        *tiny_settings({"training.device": "cpu"}),
        "--out",
        str(tmp_path / "a run"),
        "--quiet",
    ]
    done = subprocess.run(
        [str(tmp_path / "train.sbatch"), *arguments],
        env={**os.environ, **slurm, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads((tmp_path / "a run" / "training.json").read_text())["processes"] == 2
