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
    files = (tmp_path / "RESULTS.md", tmp_path / "results" / "budgets.svg")
    assert arcvq(*arguments).output == "".join(f"{file}: written\n" for file in files)
    assert arcvq(*arguments, "--check")[:2] == (0, "".join(f"{file}: up to date\n" for file in files))
    assert "| VQ-VAE | printed | – | – | 23.32 |" in (tmp_path / "RESULTS.md").read_text()


def test_a_folder_without_results_is_told(arcvq: Callable[..., Any], tmp_path: Path) -> None:
    said = arcvq("tables", "--results", tmp_path / "none", "--out", tmp_path / "RESULTS.md")
    assert said.code == 2
    assert said.errors.startswith(f"arcvq: {tmp_path / 'none'}: no such folder")


def test_a_page_or_a_figure_that_is_not_text_is_told(arcvq: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "printed.json").write_text("{}")
    for file in (tmp_path / "results" / "budgets.svg", tmp_path / "RESULTS.md"):
        file.write_bytes(b"\xff\xfe")
        said = arcvq("tables", "--results", tmp_path / "results", "--out", tmp_path / "RESULTS.md")
        assert said.code == 2
        assert said.errors.startswith(f"arcvq: {file}: not readable as text in UTF-8")
        assert said.errors.count("\n") == 1
        assert file.read_bytes() == b"\xff\xfe"
