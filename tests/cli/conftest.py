"""Runs commands in this process, which is fast, and captures what they print."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from torch import Tensor

from arcvq.cli import main
from arcvq.data import write_png


class Result(NamedTuple):
    """Exit code, stdout and stderr of a command."""

    code: int
    output: str
    errors: str


@pytest.fixture
def arcvq(capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """`arcvq("train", "sample/vq-vae", ...)` as on the command line."""

    def run(*arguments: object) -> Result:
        capfd.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as exit:
            code = exit.code if isinstance(exit.code, int) else 1
        return Result(code, *capfd.readouterr())

    return run


@pytest.fixture
def images(tmp_path: Path, sample_pixels: Tensor) -> Path:
    """A folder of four PNGs."""
    for i in range(4):
        write_png(tmp_path / "images" / f"image-{i}.png", sample_pixels[i])
    return tmp_path / "images"
