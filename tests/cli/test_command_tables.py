"""`arcvq tables`: writes, checks, and says so."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_tables_are_written_once_and_checked(arcvq: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "printed.json").write_text(json.dumps({"cifar10": {"vq-vae": {"psnr": 23.32}}}))
    arguments = ["tables", "--results", tmp_path / "results", "--out", tmp_path / "RESULTS.md"]
    missing = arcvq(*arguments, "--check")
    assert (missing.code, (tmp_path / "RESULTS.md").exists()) == (1, False)
    assert arcvq(*arguments).output == f"{tmp_path / 'RESULTS.md'}: written\n"
    assert arcvq(*arguments, "--check")[:2] == (0, f"{tmp_path / 'RESULTS.md'}: up to date\n")
    assert "| VQ-VAE | printed | – | – | 23.32 |" in (tmp_path / "RESULTS.md").read_text()


def test_a_folder_without_results_is_told(arcvq: Callable[..., Any], tmp_path: Path) -> None:
    said = arcvq("tables", "--results", tmp_path / "none", "--out", tmp_path / "RESULTS.md")
    assert said.code == 2
    assert said.errors.startswith(f"arcvq: {tmp_path / 'none'}: no such folder")
