"""The picture of rate and distortion in docs/speed.md."""

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from arcvq import ArcvqError
from benchmarks.tables import section_text

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "make_compression_picture.py"
OURS = [
    {"name": "arcvq portable", "kind": "arcvq", "mode": "portable", "bits_per_pixel": 0.04, "payload": 0.03, "psnr": 22.0},
    {"name": "arcvq prior", "kind": "arcvq", "mode": "prior", "bits_per_pixel": 0.03, "payload": 0.02, "psnr": 22.0},
]  # fmt: skip
ROWS: list[dict[str, Any]] = [
    {"name": "JPEG 80", "kind": "JPEG", "quality": 80, "bits_per_pixel": 1.5, "psnr": 33.0},
    {"name": "JPEG 1", "kind": "JPEG", "quality": 1, "bits_per_pixel": 0.2, "psnr": 18.0},
    {"name": "AVIF", "missing": "Pillow was built without AVIF"},
    *OURS,
]


def measured(folder: Path, rows: list[dict[str, Any]] = ROWS, **about: Any) -> Path:
    """A file as the suite writes it, in the folder `benchmarks` of a repository."""
    (folder / "benchmarks").mkdir(exist_ok=True)
    file = folder / "benchmarks" / "mine.json"
    head = {"date": "2026-01-02", "device": "A CPU", "threads": 2, "versions": {"torch": "2.11"}}
    facts = {"suite": "compression", "model": "mine", "data": "photos", "images": 3, **about}
    file.write_text(json.dumps({**head, **facts, "rows": [{"task": "compression", **row} for row in rows]}))
    return file


def test_each_format_is_a_curve_by_rate_and_ours_are_points(tmp_path: Path) -> None:
    (panel,) = runpy.run_path(str(SCRIPT))["draw"](measured(tmp_path)).axes
    lines = {line.get_label(): line for line in panel.lines}
    assert list(lines) == ["JPEG", "arcvq prior", "arcvq portable"]
    assert (list(lines["JPEG"].get_xdata()), list(lines["JPEG"].get_ydata())) == ([0.2, 1.5], [18.0, 33.0])
    assert (list(lines["arcvq prior"].get_xdata()), lines["arcvq prior"].get_linestyle()) == ([0.03], "None")
    assert lines["JPEG"].get_linestyle() == "-"
    assert (panel.get_xscale(), panel.get_yscale()) == ("log", "linear")
    assert "bits per pixel" in panel.get_xlabel()


@pytest.mark.parametrize(
    ("rows", "suite", "fact"),
    [(ROWS, "tokens", "suite compression"), (ROWS[2:3], "compression", "no row")],
)
def test_other_files_are_refused(tmp_path: Path, rows: list[dict[str, Any]], suite: str, fact: str) -> None:
    with pytest.raises(ArcvqError, match=fact):
        runpy.run_path(str(SCRIPT))["draw"](measured(tmp_path, rows, suite=suite))


def test_a_file_that_is_not_there_is_reported_as_not_measured(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path / "none.json")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "none.json: not measured" in done.stderr


def test_section_of_a_file_that_is_not_there_says_not_measured(tmp_path: Path) -> None:
    assert section_text("mine", tmp_path) == "Not measured yet."


def test_section_has_table_and_picture(tmp_path: Path) -> None:
    measured(tmp_path)
    text = section_text("mine", tmp_path)
    assert "`mine`, 3 pictures of photos.\n" in text
    assert "| arcvq prior | 0.0300 | 0.0200 | 22.00 |" in text
    assert "png" not in text
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "compression.png").touch()
    assert section_text("mine", tmp_path).endswith("](compression.png)")
