"""docs/speed.md shows the numbers of the JSON files."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import OTHERS, main
from benchmarks.tables import TABLES, section_text, write_tables

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


def test_vqgan_tables_have_measured_numbers(tmp_path: Path) -> None:
    step = {
        "task": "vqgan step",
        "batch_size": 30,
        "side": 256,
        "milliseconds": 500.0,
        "mebibytes": 2560.0,
        "limit_fraction": 0.375,
    }
    coding = {"task": "vqgan coding", "batch_size": 30, "encode_images_per_second": 1234.0, "decode_images_per_second": 99.0,
              "encode_mebibytes": 512.0, "decode_mebibytes": 1536.0}  # fmt: skip
    rows = [
        {**step, "name": "torch's layers"},
        {**coding, "name": "arcvq bf16", "agreement": 0.75, "psnr": 20.0, "psnr_difference": -0.0125},
        {**coding, "name": "diffusers VQModel fp32"},
        {"task": "vqgan coding", "name": "diffusers VQModel bf16", "missing": "not installed: pip install diffusers"},
        {**step, "name": "arcvq", "milliseconds": 250.0, "limit_fraction": 0.75},  # measured after the coding rows
    ]
    text = section_of(tmp_path, {"suite": "vqgan", "bf16_operations_per_second": 7.5e14, "rows": rows})
    assert text.startswith("A CPU, 2 threads, torch 2.11, 2026-01-02; limit 750 bf16 TFLOP/s.\n")
    steps, codings = text.split("\n\n")[1:]
    assert steps.splitlines()[2:] == [
        "| torch's layers | 30 × 256² | 500.0 | 60.0 | 2.5 | 38% |",
        "| arcvq | 30 × 256² | 250.0 | 120.0 | 2.5 | 75% |",
    ]
    assert codings.splitlines()[2:] == [
        "| arcvq bf16 | 1,234.0 | 99.0 | 1.5 | 75.000% | -0.0125 |",
        "| diffusers VQModel fp32 | 1,234.0 | 99.0 | 1.5 | – | – |",
        "| diffusers VQModel bf16 | not installed | – | – | – | – |",
    ]


def test_loader_table_says_how_often_the_need_of_the_fastest_step_is_covered(tmp_path: Path) -> None:
    step = {"task": "step", "preset": "cifar10/vq-vae", "batch_size": 64, "milliseconds": 1.0}
    read = {"task": "loader", "batch_size": 64, "milliseconds": 1.0}
    rows = [
        {**step, "name": "cifar10/vq-vae, fp32 eager", "images_per_second": 500.0},
        {**step, "name": "cifar10/vq-vae, bf16 captured", "images_per_second": 2000.0},
        {**read, "name": "folder, 1 threads", "kind": "folder", "threads": 1, "images_per_second": 1500.0},
        {**read, "name": "shards, 4 threads", "kind": "shards", "threads": 4, "images_per_second": 5000.0},
    ]
    text = section_of(tmp_path, {"suite": "loader", "data": "folder:photos", "image_size": 128, "rows": rows})
    assert "files of folder:photos, resized and cropped to 128×128 pixels.\n" in text
    assert "| from | threads | images/s | of cifar10/vq-vae's 2,000 |" in text
    assert "| folder | 1 | 1,500 | 0.75× |" in text
    assert "| shards | 4 | 5,000 | 2.50× |" in text


def test_loader_table_without_a_step_has_speeds_alone(tmp_path: Path) -> None:
    rows = [{"task": "loader", "name": "x", "kind": "folder", "threads": 1, "images_per_second": 1500.0}]
    text = section_of(tmp_path, {"suite": "loader", "data": "folder:photos", "image_size": 128, "rows": rows})
    assert text.endswith("| folder | 1 | 1,500 |")


def test_sampling_table_has_the_factor_over_the_first_way_of_each_prior(tmp_path: Path) -> None:
    row = {"task": "sampling", "batch_size": 256, "seconds": 1.0}
    rows = [
        {**row, "name": "cifar10/gpt, plain loop", "images_per_second": 12.5},
        {**row, "name": "cifar10/gpt, arcvq", "images_per_second": 2500.0},
        {**row, "name": "cifar10/ldm, diffusers' scheduler", "images_per_second": 100.0},
        {**row, "name": "cifar10/ldm, arcvq", "images_per_second": 150.0},
    ]
    text = section_of(tmp_path, {"suite": "sampling", "rows": rows})
    assert "| cifar10/gpt | plain loop | 256 | 12.5 | 1.0× |" in text
    assert "| cifar10/gpt | arcvq | 256 | 2,500 | 200.0× |" in text
    assert "| cifar10/ldm | arcvq | 256 | 150 | 1.5× |" in text


def test_every_suite_has_a_table() -> None:
    assert set(TABLES) == set(OTHERS)
