"""Commands in processes of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "arcvq"]


def run(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    words = [*COMMAND, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=100, cwd=cwd)


def test_train_evaluate_encode_decode_in_processes(
    tmp_path: Path, images: Path, tiny_settings: Callable[..., list[str]]
) -> None:
    trained = run("train", "sample/arcvq-vae", *tiny_settings(), "--out", "run", "--quiet", cwd=tmp_path)
    assert (trained.returncode, trained.stderr) == (0, "")
    evaluated = run("evaluate", "run", "--limit", "16", "--metrics", "psnr", "--out", "result.json", cwd=tmp_path)
    assert (evaluated.returncode, evaluated.stderr) == (0, "")
    psnr = json.loads((tmp_path / "result.json").read_text())["protocols"]["exact"]["metrics"]["psnr"]
    assert f"{psnr:.2f}" in evaluated.stdout
    encoded = run("encode", "run", "images", "--out", "tokens.npz", cwd=tmp_path)
    decoded = run("decode", "run", "tokens.npz", "--out", "pictures", cwd=tmp_path)
    assert (encoded.returncode, encoded.stderr, decoded.returncode, decoded.stderr) == (0, "", 0, "")
    assert len(list((tmp_path / "pictures").glob("*.png"))) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "sample/vq-vea", "--out", "run"], "unknown preset 'sample/vq-vea': did you mean sample/vq-vae"),
        (["decode", "tiny", "none.npz", "--out", "out"], "none.npz: no such token file"),
    ],
)
def test_user_error_is_one_line_and_exit_code_2(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"arcvq: {message}")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_closed_pipe_is_no_error(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        done = subprocess.run(
            [*COMMAND, "presets", "--json"], stdout=closed, stderr=subprocess.PIPE, text=True, timeout=100, cwd=tmp_path
        )
    assert "Traceback" not in done.stderr
    assert done.stderr == ""
