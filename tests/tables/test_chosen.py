"""What the studies choose."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from page_blocks import block, rows
from study_results import BEST_AT_1E_3, VQ_VAE, named, try_recipes, tune

from arcvq.systems import load_system
from arcvq.tables import chosen_text, results_page
from arcvq.tables.chosen import CHOSEN, choose
from arcvq.tables.studies import LADDER, RECIPE_PRESET, RECIPES, tuning, tunings

Add = Callable[..., None]


def test_the_choice_is_by_the_last_look_at_held_out_images(folder: Path, add: Add) -> None:
    assert choose(named(folder)) == {"tuned": {}}
    tune(add, "vq-vae", *BEST_AT_1E_3[:-1])
    assert choose(named(folder)) == {"tuned": {}}  # before all are tried
    tune(add, "vq-vae", *BEST_AT_1E_3)
    assert json.loads(chosen_text(named(folder)))["tuned"] == VQ_VAE
    # Looks at the test set choose nothing.
    for run in tuning("cvq-vae").values():
        add(run.name, exact={"psnr": 25.0}, looks={100.0: 25.0}, epochs=100)
    assert "cvq-vae" not in choose(named(folder))["tuned"]
    without_samp = dict.fromkeys(
        ["neither", "neither-likelihood", "sq-neither", "sq-neither-sphere"], 24.9
    )  # not to be chosen
    try_recipes(add, rotation=24.5, **without_samp)
    assert choose(named(folder))["recipe"] == "scaffold-rotation"


def test_where_the_best_is_at_an_end_the_next_rate_is_tried_too(folder: Path, add: Add) -> None:
    tune(add, "vq-vae", 21.0, 20.0, 22.0, 21.0, 23.5, 22.0, 22.0, 23.0)  # constant: inside; cosine: at the highest
    assert choose(named(folder)) == {"tuned": {}, "further": {"vq-vae": [("1.6e-2", "cosine")]}}
    page = results_page(folder, None)
    headings = rows(page, "tuning")[0]
    assert "1.6e-2, cosine" in headings
    assert "1.6e-2, constant" not in headings
    found = dict(zip(headings, rows(page, "tuning", "vq-vae")[0]))
    assert (found["8e-3, cosine"], found["1.6e-2, cosine"], found["chosen"]) == ("23.00", "–", "open, 8 of 9 tried")
    assert dict(zip(headings, rows(page, "tuning", "fsq")[0]))["1.6e-2, cosine"] == ""  # nobody asked for it
    # What chosen.json then says is what a sweep tries.
    more = tunings(json.loads(chosen_text(named(folder))))[-1]
    assert more.name == "tune-vq-vae-lr1.6e-2-cosine"
    assert load_system("cifar10/vq-vae", more.settings).training.learning_rate == 0.016
    add(more.name, exact={"psnr": 20.0}, looks={100.0: 24.0}, holdout=5000, epochs=100)
    further = [("1.6e-2", "cosine"), ("3.2e-2", "cosine")]
    assert choose(named(folder)) == {"tuned": {}, "further": {"vq-vae": further}}
    (last,) = tuning("vq-vae", further[1:]).values()
    add(last.name, exact={"psnr": 20.0}, looks={100.0: 24.1}, holdout=5000, epochs=100)
    settled = {"vq-vae": {"constant": "4e-3", "cosine": LADDER[-1]}}  # here it ends
    assert choose(named(folder)) == {"tuned": settled, "further": {"vq-vae": further}}
    add(last.name, exact={"psnr": 20.0}, looks={100.0: 23.5}, holdout=5000, epochs=100)
    assert choose(named(folder))["tuned"]["vq-vae"]["cosine"] == "1.6e-2"


def test_a_schedule_under_which_all_diverge_is_left(folder: Path, add: Add) -> None:
    tune(add, "vq-vae", 21.0, 20.0, 22.0, 21.0, 23.0, 22.0, 22.0, 21.0)
    for (_, schedule), run in tuning("vq-vae").items():
        if schedule == "cosine":
            add(run.name, diverged="at step 9", looks={50.0: 30.0}, holdout=5000, epochs=100)
    assert choose(named(folder)) == {"tuned": {"vq-vae": {"constant": "4e-3"}}}
    assert rows(results_page(folder, None), "tuning", "vq-vae")[0][-1] == "4e-3 constant"


def test_a_schedule_far_behind_the_other_is_left(folder: Path, add: Add) -> None:
    for cosine, left in ((22.1, {"constant": "4e-3", "cosine": "2e-3"}), (22.0, {"constant": "4e-3"})):
        tune(add, "vq-vae", 21.0, 20.0, 22.0, cosine, 23.0, 21.0, 22.0, 21.0)
        assert choose(named(folder)) == {"tuned": {"vq-vae": left}}
        shown = rows(results_page(folder, None), "tuning", "vq-vae")[0]
        assert shown[-1] == ", ".join(f"{rate} {schedule}" for schedule, rate in left.items())
        assert (f"**{cosine:.2f}**" in shown) == ("cosine" in left)  # its best rate is marked only if it goes on


def test_only_runs_of_one_precision_are_compared(folder: Path, add: Add) -> None:
    tune(add, "vq-vae", *BEST_AT_1E_3)
    (*_, last) = tuning("vq-vae").values()
    add(f"{last.name}-bf16", exact={"psnr": 25.0}, looks={100.0: 25.0}, holdout=5000, epochs=100, precision="bf16")
    assert choose(named(folder))["tuned"] == VQ_VAE
    assert "Trained in" not in block(results_page(folder, None), "tuning")
    for run in tuning("cvq-vae").values():
        add(f"{run.name}-bf16", exact={"psnr": 25.0}, looks={100.0: 25.0}, holdout=5000, epochs=100, precision="bf16")
    assert block(results_page(folder, None), "tuning").endswith("Trained in bf16 and fp32.")
    # What a cause moves, too: the other run is there in bf16 alone.
    add("vq-vae", paper={"psnr": 24.0})
    add("vq-vae-variance01-bf16", paper={"psnr": 25.0}, precision="bf16")
    assert rows(results_page(folder, None), "causes", "cifar10, vq-vae")[0][5] == "not measured"
    add("vq-vae-bf16", paper={"psnr": 24.5}, precision="bf16")
    assert rows(results_page(folder, None), "causes", "cifar10, vq-vae")[0][5] == "+0.50"


def test_the_recipe_s_preset_is_what_was_chosen() -> None:
    chosen = RECIPES[CHOSEN["recipe"]]
    wanted, preset = load_system(f"cifar10/{chosen.preset}", chosen.settings), load_system(f"cifar10/{RECIPE_PRESET}")
    assert asdict(preset) | {"name": None} == asdict(wanted) | {"name": None}
