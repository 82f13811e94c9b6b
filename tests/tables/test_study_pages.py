"""The tables of the studies, and how they tell what came to nothing."""

from collections.abc import Callable
from pathlib import Path

from page_blocks import block, rows
from study_results import BEST_AT_1E_3, LOWER, VQ_VAE, named, try_recipes, tune

from arcvq.tables import results_page
from arcvq.tables.chosen import choose
from arcvq.tables.curves import curves
from arcvq.tables.studies import CONTENDERS, tuning

Add = Callable[..., None]


def test_the_tables_of_the_studies(folder: Path, add: Add) -> None:
    tune(add, "vq-vae", *BEST_AT_1E_3)
    tune(add, "fsq", 21.0)
    try_recipes(add, rotation=24.5, ema=24.25)
    add("grid-alpha-third-decay-same-lr1e-3", exact={"usage": 0.75}, looks={100.0: 23.0}, holdout=5000, epochs=100)
    for name, psnr in (("grid-alpha-same-decay-same-lr1e-3", 23.2), ("schedule-arc-linear", 22.5)):
        add(name, exact={"psnr": 22.0, "usage": 0.5}, looks={100.0: psnr}, holdout=5000, epochs=100)
    for name, psnr, usage in (("tune-vq-vae-lr1e-3-cosine", 24.0, 0.9), ("top-vq-vae-lr1e-3-cosine-early", 21.5, 0.25)):
        add(name, exact={"psnr": 20.0, "usage": usage}, looks={100.0: psnr}, holdout=5000, epochs=100)
    page = results_page(folder, None)
    assert rows(page, "tuning", "vq-vae")[0] == [
        "vq-vae",
        "18.00",
        "21.00",
        "**24.00**",
        "**23.50**",
        "22.00",
        "20.00",
        "20.50",
        "19.00",
        "19.50",
        "2e-3 constant, 1e-3 cosine",
    ]
    assert rows(page, "tuning", "fsq")[0][-1] == "open, 1 of 8 tried"
    ranking = [line[0] for line in rows(page, "recipe")[2:]]
    assert ranking[:2] == ["**scaffold-rotation**", "scaffold-ema"]
    assert ranking[-1] == "tune-vq-vae-lr1e-3-cosine"
    assert rows(page, "recipe", "scaffold-ema")[0][2:] == ["24.25", "24.25", "90.0%"]
    assert "Chosen: `scaffold-rotation`." in block(page, "recipe")
    assert rows(page, "grid", "α ⅓ ×", "λ 1 ×")[0][2:] == ["–", "23.00, 75.0%"]
    (only,) = rows(page, "on-top")[2:]
    assert only == ["vq-vae", "1e-3", "24.00, 90.0%", "–", "21.50, 25.0%"]
    shapes = [(line[0], *line[2:]) for line in rows(page, "schedules")[2:]]
    assert shapes[0] == ("`grid-alpha-same-decay-same-lr1e-3`", "23.20", "22.00", "50.0%")
    assert ("`schedule-arc-linear`", "22.50", "22.00", "50.0%") in shapes
    assert shapes[-1] == ("`schedule-ball-oscillating`", "–", "–", "–")
    assert f"Not tuned yet: {', '.join(s for s in CONTENDERS if s != 'vq-vae')}." in block(page, "budgets")


def test_what_diverges_is_tried_and_told(folder: Path, add: Add) -> None:
    tune(add, "vq-vae", *BEST_AT_1E_3[:-1])
    (*_, last) = tuning("vq-vae").values()
    add(last.name, diverged="at step 9", looks={50.0: 30.0}, holdout=5000, epochs=100)
    for run in tuning("vq-vae", LOWER).values():
        add(run.name, diverged="at step 5", looks={50.0: 30.0}, holdout=5000, epochs=100)
    assert choose(named(folder))["tuned"] == VQ_VAE
    page = results_page(folder, None)
    assert rows(page, "tuning", "vq-vae")[0][1] == "diverged"
    assert rows(page, "tuning", "vq-vae")[0][9] == "diverged"
    assert rows(page, "runs", f"cifar10/{last.name}-seed1")[0][1:3] == ["–", "diverged"]
    # A long training is worth as much as it has been through.
    add("vq-vae-lr2e-3-500epochs", diverged="at step 9", looks={25.0: 21.0, 50.0: 22.0, 60.0: 5.0})
    try_recipes(add, cvq=24.5)
    add("scaffold-cvq-25epochs", epochs=25, exact={"psnr": 21.0, "usage": 1.0})
    add("recipe-scaffold-rotation", diverged="at step 9", looks={50.0: 30.0}, holdout=5000, epochs=100)
    assert choose(named(folder))["recipe"] == "scaffold-cvq"
    page = results_page(folder, None)
    assert rows(page, "recipe", "scaffold-rotation")[0][2:] == ["diverged", "–", "–"]
    assert rows(page, "budgets", "vq-vae-lr2e-3")[0][1:] == ["21.00, 50.0%", "22.00, 50.0%", "–", "–", "diverged"]
    assert "- 25 epochs: `scaffold-cvq` 21.00, best rival (of 1 tried of 2) `vq-vae-lr2e-3` 21.00: level" in page
    # Of a preset that is told beside the other lengths, and nothing else of it in Table 1 or over time.
    add("vq-vae", diverged="at step 9", looks={25.0: 21.0})
    add("vq-vae", 2, diverged="at step 9", looks={25.0: 21.0})
    page = results_page(folder, None)
    assert rows(page, "table1", "VQ-VAE", "ours")[0][2] == "not measured"
    assert rows(page, "budgets", "vq-vae, its preset")[0][1:] == ["–", "–", "–", "–", "diverged"]
    assert [curve.name for curve in curves(named(folder))] == ["vq-vae, tuned", "scaffold-cvq (recipe)"]
    add("vq-vae", exact={"psnr": 24.0})
    assert rows(results_page(folder, None), "table1", "VQ-VAE", "ours, exact")[0][2] == "1"


def test_every_study_tells_what_came_to_nothing(folder: Path, add: Add) -> None:
    tune(add, "vq-vae", *BEST_AT_1E_3)
    for name in ("schedule-arc-constant", "top-vq-vae-lr1e-3-cosine-paper", "grid-alpha-third-decay-same-lr3e-4"):
        add(name, diverged="at step 9", looks={50.0: 30.0}, holdout=5000, epochs=100)
    for name in ("schedule-arc-linear", "top-vq-vae-lr1e-3-cosine-early", "grid-alpha-third-decay-same-lr1e-3"):
        add(name, exact={"psnr": 12.5, "usage": 1.0}, looks={0.0: 12.1, 100.0: 12.5}, holdout=5000, epochs=100)
    page = results_page(folder, None)
    assert rows(page, "schedules", "`schedule-arc-constant`")[0][2:] == ["diverged", "–", "–"]
    assert rows(page, "schedules", "`schedule-arc-linear`")[0][2:] == ["collapsed", "–", "–"]
    assert rows(page, "on-top", "vq-vae")[0][-2:] == ["diverged", "collapsed"]
    assert rows(page, "grid", "α ⅓ ×", "λ 1 ×")[0][2:] == ["diverged", "collapsed"]


def test_what_ends_as_bad_as_it_began_has_collapsed(folder: Path, add: Add) -> None:
    tune(add, "vq-vae", *BEST_AT_1E_3)
    (*_, last) = tuning("vq-vae").values()
    dead = {0.0: 12.1, 50.0: 22.0, 100.0: 12.7}
    add(last.name, exact={"psnr": 12.7}, looks=dead, holdout=5000, epochs=100)
    try_recipes(add, cvq=24.5)
    add("recipe-scaffold-ema", exact={"psnr": 12.7, "usage": 1.0}, looks=dead, holdout=5000, epochs=100)
    add(
        "vq-vae-lr2e-3-500epochs",
        exact={"psnr": 12.7},
        looks={0.0: 12.1, 25.0: 22.0, 500.0: 12.7},
        paper={"psnr": 40.0},
    )
    add("vq-vae-lr1e-3-cosine-25epochs", epochs=25, exact={"psnr": 13.2}, looks={0.0: 12.1, 25.0: 13.2})
    add("scaffold-cvq-25epochs", epochs=25, exact={"psnr": 21.0, "usage": 1.0})
    page = results_page(folder, None)
    assert rows(page, "tuning", "vq-vae")[0][8:] == ["19.00", "collapsed", "2e-3 constant, 1e-3 cosine"]
    assert rows(page, "recipe", "scaffold-ema")[0][2:] == ["collapsed", "–", "–"]
    assert rows(page, "budgets", "vq-vae-lr2e-3")[0][1:] == ["22.00, 50.0%", "–", "–", "–", "collapsed"]
    assert rows(page, "budgets", "vq-vae-lr1e-3-cosine")[0][1] == "13.20"  # it has learnt something
    assert block(page, "protocols") == "No run is measured under both protocols yet."
    assert "best rival (of 2) `vq-vae-lr2e-3` 22.00" in page
