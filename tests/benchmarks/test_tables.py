"""docs/speed.md shows the numbers of the JSON files."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.tables import section_text, write_tables

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "benchmarks").glob("*.json"))
HEAD = {"date": "2026-01-02", "device": "A CPU", "threads": 2, "versions": {"torch": "2.11"}}


def section_of(root: Path, document: dict[str, Any]) -> str:
    """The section of the page that is section_of for this document."""
    (root / "benchmarks").mkdir()
    (root / "benchmarks" / "mine.json").write_text(json.dumps(HEAD | document), encoding="utf-8")
    return section_text("mine", root)


def test_speed_page_is_up_to_date() -> None:
    assert main(["tables", "--check"]) == 0


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_json_file_is_in_page(path: Path) -> None:
    assert f"<!-- {path.stem}:begin -->" in (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")


def test_outdated_tables_are_rewritten(tmp_path: Path) -> None:
    for name in ("docs/speed.md", "results/runs.csv", *(f"benchmarks/{path.name}" for path in FILES)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    page = tmp_path / "docs" / "speed.md"
    expected = page.read_text(encoding="utf-8")
    page.write_text(
        expected.replace("| cifar10/arcvq-vae | fp32 eager |", "| another | fp32 eager |"), encoding="utf-8"
    )
    assert write_tables(check=True, root=tmp_path) == 1
    assert write_tables(check=False, root=tmp_path) == 0
    assert page.read_text(encoding="utf-8") == expected


def test_size_table_has_measured_numbers(tmp_path: Path) -> None:
    size = {"task": "assign", "tokens": 2048, "codes": 1024, "width": 16, "limit_fraction": 0.25, "mebibytes": 2.0}
    rows = [
        {**size, "name": "ours", "milliseconds": 1.25},
        {**size, "name": "theirs", "milliseconds": 2.5},
        {**size, "codes": 65536, "name": "ours", "milliseconds": 180.0},
        {**size, "codes": 65536, "name": "theirs", "missing": "out of memory"},
    ]
    limits = {"measured": {"operations_per_second": 1.5e12, "bytes_per_second": 2e10}}
    text = section_of(tmp_path, {"suite": "small", "limits": limits, "rows": rows})
    assert text.startswith("A CPU, 2 threads, torch 2.11, 2026-01-02; limit 1.5 float32 TFLOP/s and 20 GB/s.\n")
    assert "| 2,048 | 1,024 | 16 | **1.25**, 25%, 2.0 | 2.5, 25%, 2.0 |" in text
    assert "| 2,048 | 65,536 | 16 | **180**, 25%, 2.0 | out of memory |" in text


def test_precision_table_has_measured_numbers(tmp_path: Path) -> None:
    row = {"name": "fp32 plain", "agreement": 1.0, "psnr": 20.0, "psnr_difference": 0.0, "encode_images_per_second": 1234.0,
           "decode_images_per_second": 99.0, "encode_mebibytes": 5.0, "decode_mebibytes": 6.0}  # fmt: skip
    about = {"suite": "tokens", "model": "tiny", "data": "sample", "images": 64, "batch_size": 32}
    text = section_of(tmp_path, {**about, "rows": [row, {"name": "tf32 plain", "missing": "needs an NVIDIA GPU"}]})
    assert "| fp32 plain | 100.000% | 20.000 | +0.0000 | 1,234 | 99 | 6 |" in text
    assert "tf32" not in text


def test_blocks_table_has_measured_numbers(tmp_path: Path) -> None:
    size = {"images": 30, "channels": 128, "side": 256, "mebibytes": 480.0}
    rows = [
        {"task": "norm", "name": "arcvq channels last, forward", **size, "milliseconds": 0.5, "limit_fraction": 0.75},
        {"task": "attention", "name": "torch forward", **size, "milliseconds": 2.0},
    ]
    text = section_of(tmp_path, {"suite": "blocks", "rows": rows})
    assert "| norm | arcvq channels last, forward | 30 × 128 × 256² | 0.5 | 75% | 480 |" in text
    assert "| attention | torch forward | 30 × 128 × 256² | 2 | – | 480 |" in text


def test_seams_table_has_measured_numbers(tmp_path: Path) -> None:
    tiled = {"tile": 128, "margin": 16, "agreement": 0.5, "psnr": 25.25, "psnr_to_whole": 40.25, "near_error": 1.5,
             "elsewhere_error": 0.25, "computed": 1.75, "mebibytes": 12.0}  # fmt: skip
    about = {"suite": "seams", "model": "mine", "data": "photos", "images": 3, "sides": [512, 768], "batch_size": 1}
    rows = [{"name": "whole", "psnr": 25.5, "mebibytes": 1234.0}, {"name": "tile 128, margin 16", **tiled}]
    text = section_of(tmp_path, {**about, "rows": rows})
    assert "`mine`, 3 images of photos, the first of 512×768 pixels, tiles 1 at a time.\n" in text
    assert "| whole | – | – | 25.50 | – | – | – | 1.00 | 1,234 |" in text
    assert "| 128 | 16 | 50.000% | 25.25 | 40.2 | 1.500 | 0.250 | 1.75 | 12 |" in text
