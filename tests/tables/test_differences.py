"""What lies between our numbers and the printed ones."""

from collections.abc import Callable
from pathlib import Path

from page_blocks import block, rows
from study_results import BEST_AT_1E_3, tune

from arcvq.tables import results_page
from arcvq.tables.differences import verdict

Add = Callable[..., None]


def test_what_lies_behind_the_printed_numbers(folder: Path, add: Add) -> None:
    page = results_page(folder, None)
    assert block(page, "causes") == "Nothing of Table 1 is measured under `paper` yet."
    assert block(page, "looks") == "No run has its looks at the test set beside it yet."
    add("vq-vae", paper={"psnr": 24.32}, exact={"psnr": 24.5}, looks={25.0: 24.6, 500.0: 24.5})
    add("vq-vae", 2, exact={"psnr": 30.0})  # without the other protocol: no pair
    add("arcvq-vae", paper={"psnr": 24.0})
    page = results_page(folder, None)
    cells = ["+1.00", "one seed", "-0.18", "+0.10", "not measured", "–", "not measured"]
    assert rows(page, "causes", "cifar10, vq-vae")[0][1:] == cells
    assert rows(page, "causes", "cifar10, arcvq-vae")[0][3:] == ["not measured"] * 5
    assert rows(page, "looks", "cifar10, vq-vae")[0][1:] == ["1", "2", "2000", "24.50", "24.60", "25", "+0.100"]
    add("vq-vae-variance01", paper={"psnr": 23.52})
    tune(add, "vq-vae", *BEST_AT_1E_3)
    add("vq-vae-lr1e-3-cosine-500epochs", paper={"psnr": 25.32})
    add("vq-vae-lr2e-3-500epochs", paper={"psnr": 24.92})
    add("released-code", paper={"psnr": 24.5})
    page = results_page(folder, None)
    assert rows(page, "causes", "cifar10, vq-vae")[0][5:] == ["-0.80", "–", "+1.00"]
    add("vq-vae-lr2e-3-500epochs", paper={"psnr": 25.42})
    assert rows(results_page(folder, None), "causes", "cifar10, vq-vae")[0][7] == "+1.10"
    assert rows(page, "causes", "cifar10, arcvq-vae")[0][6] == "+0.50"
    said = "1.00 dB above print; nearer to print with weight × 4 (-0.80, which leaves +0.20)"
    said += "; not nearer with best look (+0.10), tuned rate (+1.00)."
    assert f"- cifar10, vq-vae: {said}" in block(page, "causes")


def test_a_move_within_the_spread_brings_nothing_nearer() -> None:
    moved = {"best look": 0.05, "weight × 4": -0.8, "released code": None, "tuned rate": "not measured"}
    said = "1.00 dB above print; nearer to print with weight × 4 (-0.80, which leaves +0.20)"
    assert verdict(1.0, 0.1, moved) == f"{said}; within the spread: best look (+0.05); not measured: tuned rate."
    assert verdict(-0.004, 0.1, {}) == "level with print."
    assert verdict(1.0, 0.0, moved) == f"{said}; not nearer with best look (+0.05); not measured: tuned rate."


def test_trained_as_print_may_have_been(folder: Path, add: Add) -> None:
    """In every metric, all in one precision, and only where there is such a training."""
    add("vq-vae", paper={"psnr": 24.32, "rfid": 30.0})
    assert block(results_page(folder, None), "retrained") == "No such training is measured yet."
    add("vq-vae-bf16", paper={"psnr": 24.42, "rfid": 31.0})
    add("vq-vae-bf16", 2, paper={"psnr": 24.62, "rfid": 33.0})
    add("vq-vae-variance01-bf16", paper={"psnr": 23.22, "rfid": 40.0}, looks={475.0: 24.0, 500.0: 23.25})
    add("cvq-vae", paper={"psnr": 24.5})
    add("sq-vae", paper={"psnr": 25.0})
    add("arcvq-vae", paper={"psnr": 24.5})
    add("released-code", paper={"psnr": 24.7})
    page = results_page(folder, None)
    found = {row[0]: row[1:] for row in rows(page, "retrained")[2:]}
    whose = ["vq-vae", "vq-vae, weight × 4", "arcvq-vae", "arcvq-vae, released code"]
    assert list(found) == [f"cifar10, {each}" for each in whose]
    assert found["cifar10, vq-vae"] == ["2", "–", "+1.20", "–", "–", "-7.67", "–"]
    assert found["cifar10, vq-vae, weight × 4"] == ["1", "–", "-0.10", "–", "–", "+0.33", "+0.75"]
    assert rows(page, "looks", "cifar10, vq-vae-variance01, bf16")[0][-1] == "+0.750"  # it ended in a dip
    printed = float(rows(page, "table1", "ArcVQ-VAE", "printed")[0][4])
    assert found["cifar10, arcvq-vae, released code"][2] == f"{24.7 - printed:+.2f}"
