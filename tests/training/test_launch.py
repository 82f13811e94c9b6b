"""How a training is launched: devices and processes."""

import os
import warnings

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
