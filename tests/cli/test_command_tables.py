"""`arcvq tables`: writes, checks, and says so."""

from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_tables_are_written_once_and_checked(arcvq: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    arguments = ["tables", "--results", tmp_path / "results", "--out", tmp_path / "RESULTS.md"]
    missing = arcvq(*arguments, "--check")
    assert (missing.code, (tmp_path / "RESULTS.md").exists()) == (1, False)
    files = (tmp_path / "RESULTS.md", tmp_path / "results" / "budgets.svg")
    assert arcvq(*arguments).output == "".join(f"{file}: written\n" for file in files)
    assert arcvq(*arguments, "--check")[:2] == (0, "".join(f"{file}: up to date\n" for file in files))
    assert "| VQ-VAE | printed | – | 0.0527 | 23.32 |" in (tmp_path / "RESULTS.md").read_text()


def test_a_folder_without_results_is_told(arcvq: Callable[..., Any], tmp_path: Path) -> None:
    said = arcvq("tables", "--results", tmp_path / "none", "--out", tmp_path / "RESULTS.md")
    assert said.code == 2
    assert said.errors.startswith(f"arcvq: {tmp_path / 'none'}: no such folder")


def test_a_page_or_a_figure_that_is_not_text_is_told(arcvq: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    for file in (tmp_path / "results" / "budgets.svg", tmp_path / "RESULTS.md"):
        file.write_bytes(b"\xff\xfe")
        said = arcvq("tables", "--results", tmp_path / "results", "--out", tmp_path / "RESULTS.md")
        assert said.code == 2
        assert said.errors.startswith(f"arcvq: {file}: not readable as text in UTF-8")
        assert said.errors.count("\n") == 1
        assert file.read_bytes() == b"\xff\xfe"
        # Nothing is written unless all can be.
        assert (tmp_path / "RESULTS.md").exists() == (file.name == "RESULTS.md")


def test_a_page_that_is_no_markdown_is_refused(arcvq: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "results" / "cifar10").mkdir(parents=True)
    file = tmp_path / "results" / "cifar10" / "vq-vae-seed1.json"
    file.write_text("{}")
    said = arcvq("tables", "--results", tmp_path / "results", "--out", file)
    assert (said.code, said.errors) == (2, f"arcvq: --out {file}: expected a page in Markdown, NAME.md\n")
    assert file.read_text() == "{}"
