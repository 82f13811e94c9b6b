"""Quality against training time, as a figure."""

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from page_blocks import block, rows
from study_results import BEST_AT_1E_3, named, try_recipes, tune

from arcvq import ArcvqError
from arcvq.tables import results_page
from arcvq.tables.curves import budget_curves, curves
from arcvq.tables.step_times import read_step_times

Add = Callable[..., None]


def test_the_curves_are_drawn_anew_only_for_new_numbers(folder: Path, add: Add) -> None:
    nothing = budget_curves(named(folder), None)
    assert ElementTree.fromstring(nothing).tag.endswith("svg")
    add("vq-vae", exact={"psnr": 24.0}, looks={0.1: 12.0, 25.0: 20.0, 500.0: 24.0})
    tune(add, "vq-vae", *BEST_AT_1E_3)
    for epochs in (25, 500):
        add(f"vq-vae-lr1e-3-cosine-{epochs}epochs", epochs=epochs, exact={"psnr": 24.0, "usage": 0.5})
    add("vq-vae-lr2e-3-500epochs", looks={25.0: 24.5, 50.0: 24.6, 500.0: 23.9}, exact={"psnr": 23.9, "usage": 0.4})
    add("vq-vae-lr1e-3-cosine-100epochs", epochs=100, exact={"psnr": 24.1, "usage": 0.75})
    published, tuned = curves(named(folder))
    assert (published.name, published.points) == ("vq-vae, its preset", [(25.0, 20.0, 0.5), (500.0, 24.0, 0.5)])
    # At every length the better of the two schedules.
    points = [(25.0, 24.5, 0.5), (50.0, 24.6, 0.5), (100.0, 24.1, 0.75), (500.0, 24.0, 0.5)]
    assert (tuned.name, tuned.points) == ("vq-vae, tuned", points)
    assert tuned.epoch_seconds is None
    drawn = budget_curves(named(folder), nothing)
    assert drawn != nothing
    assert "vq-vae, tuned" in drawn
    assert "seconds" not in drawn  # nobody has timed a step
    older = drawn.replace("epochs", "Epochs")  # as another version might have drawn it
    assert budget_curves(named(folder), older) == older
    assert budget_curves(named(folder), None) == drawn


def write_times(folder: Path, *rows: tuple[str, str, float]) -> None:
    told = [{"preset": p, "precision": how, "way": f"{how} captured", "milliseconds": ms} for p, how, ms in rows]
    (folder / "steps.json").write_text(json.dumps({"device": "A GPU", "date": "2026-01-02", "rows": told}))


def test_seconds_are_those_of_steps_that_had_the_device_alone(folder: Path, add: Add) -> None:
    add("vq-vae", exact={"psnr": 24.0}, looks={25.0: 20.0, 500.0: 24.0}, at_a_time=3)
    steps = json.loads((folder / "cifar10" / "vq-vae-seed1.json").read_text())["training"]["steps"]
    write_times(
        folder, ("cifar10/vq-vae", "bf16", 1.0), ("cifar10/vq-vae", "fp32", 5.0), ("cifar10/vq-vae", "fp32", 4.0)
    )
    times = read_step_times(folder)
    (curve,) = curves(named(folder), times)
    assert curve.epoch_seconds == pytest.approx(steps / 500 * 4e-3)  # of its precision, in the fastest way
    assert "seconds of training on A GPU, alone" in budget_curves(named(folder), None, times)
    page = results_page(folder, None)
    assert rows(page, "steps", "cifar10/vq-vae", "fp32")[0][2:] == ["4.00", "1.00 ×"]
    write_times(folder, ("cifar10/sq-vae", "fp32", 3.0))
    assert rows(results_page(folder, None), "steps", "cifar10/sq-vae", "fp32")[0][2:] == ["3.00", "–"]
    (curve,) = curves(named(folder), read_step_times(folder))
    assert curve.epoch_seconds is None


def test_a_recipe_has_the_steps_of_its_preset_before_its_final_too(folder: Path, add: Add) -> None:
    try_recipes(add, **{"sq-lighter": 25.41, "sq": 25.40})
    for name, psnr in (("sq-lighter", 25.0), ("sq", 25.5)):
        add(f"final-scaffold-{name}", exact={"psnr": psnr}, looks={500.0: psnr}, holdout=5000)
    for name in ("sq", "sq-lighter", "sq-neither-sphere", "sq-lr1e-3-cosine"):
        add(f"scaffold-{name}-500epochs", exact={"psnr": 25.0 + ("lr" in name), "usage": 1.0})
    for seed in (1, 2):
        add("arcvq-scaffold", seed, exact={"psnr": 25.3, "usage": 1.0})
    write_times(folder, ("cifar10/sq-vae", "fp32", 2.0), ("cifar10/arcvq-scaffold", "fp32", 3.0))
    seconds = {curve.name: curve.epoch_seconds for curve in curves(named(folder), read_step_times(folder))}
    assert seconds == {
        "scaffold-sq (recipe)": pytest.approx(49 * 3e-3),
        "scaffold-sq-lighter (recipe before the final)": pytest.approx(49 * 3e-3),
        "scaffold-sq-neither-sphere (recipe without SAMP)": pytest.approx(49 * 2e-3),
    }
    # Its point is of the row with the most seeds, not of the luckiest.
    shown = {curve.name: curve.points for curve in curves(named(folder))}
    assert shown["scaffold-sq (recipe)"] == [(500.0, 25.3, 1.0)]
    assert shown["scaffold-sq-lighter (recipe before the final)"] == [(500.0, 25.0, 1.0)]


def test_a_rival_s_point_is_of_its_best_row_however_many_seeds_another_has(folder: Path, add: Add) -> None:
    tune(add, "vq-vae", *BEST_AT_1E_3)
    add("vq-vae-lr2e-3-500epochs", exact={"psnr": 25.5, "usage": 1.0})
    for seed in (1, 2):
        add("vq-vae-lr1e-3-cosine-500epochs", seed, exact={"psnr": 25.0, "usage": 1.0})
    assert [curve.points for curve in curves(named(folder)) if curve.whole] == [[(500.0, 25.5, 1.0)]]


def test_a_file_of_other_times_is_refused(folder: Path) -> None:
    assert block(results_page(folder, None), "steps") == "Not measured yet."
    (folder / "steps.json").write_text('{"device": "A GPU", "date": "2026-01-02", "rows": [{"preset": "a"}]}')
    with pytest.raises(ArcvqError, match=r"steps.json: not what arcvq bench --suite steps writes: rows\[0\].precision"):
        results_page(folder, None)


def test_what_the_bench_wrote_is_read(folder: Path) -> None:
    written = Path(__file__).resolve().parents[2] / "benchmarks" / "h200-steps.json"
    (folder / "steps.json").write_bytes(written.read_bytes())
    times = read_step_times(folder)
    assert times is not None
    fastest = min(
        row["milliseconds"]
        for row in json.loads(written.read_text())["rows"]
        if (row["preset"], row["precision"]) == ("cifar10/arcvq-vae", "bf16")
    )
    assert times.seconds("cifar10/arcvq-vae", "bf16", 1000) == pytest.approx(fastest)
    assert times.seconds("cifar10/arcvq-vae", "fp16", 1000) is None
