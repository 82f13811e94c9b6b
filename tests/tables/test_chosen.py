"""What the studies choose."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from page_blocks import block, rows
from study_results import BEST_AT_1E_3, VQ_VAE, named, try_recipes, tune

from arcvq.systems import load_system
from arcvq.tables import chosen_text, results_page
from arcvq.tables.chosen import CHOSEN, choose
from arcvq.tables.studies import (
    BUDGETS,
    LADDER,
    RECIPE_PRESET,
    RECIPES,
    challenges,
    finals,
    recipe_contenders,
    tuning,
    tunings,
    with_and_without,
)

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


def test_candidates_that_are_level_go_on_to_a_final(folder: Path, add: Add) -> None:
    try_recipes(add, **{"sq-light": 25.41, "sq-lighter": 25.40, "sq": 25.36, "sq-neither-sphere": 25.6})
    level = ["scaffold-sq-light", "scaffold-sq-brief", "scaffold-sq-briefer", "scaffold-sq-lighter"]
    open_final = {"tuned": {}, "recipe": "scaffold-sq-light", "finals": level}
    assert choose(named(folder)) == open_final
    runs = finals(level)
    for name, psnr in zip(level[1:], (25.5, 25.3, 25.1)):
        add(runs[name].name, exact={"psnr": 25.0}, paper={"rfid": 22.0}, looks={500.0: psnr}, holdout=5000, epochs=500)
    assert choose(named(folder)) == open_final  # before all are tried
    said = block(results_page(folder, None), "recipe")
    assert "The final, 500 epochs, 3 of 4 tried:" in said
    assert (
        said.split("Until all are, the choice of the shorter trainings stands.")[1].strip()
        == "Chosen: `scaffold-sq-light`."
    )
    add(runs[level[0]].name, diverged="at step 9", looks={50.0: 30.0}, holdout=5000, epochs=500)
    decided = {"recipe": "scaffold-sq-brief", "short": "scaffold-sq-light"}
    assert choose(named(folder)) == open_final | decided
    page = results_page(folder, None)
    assert "The final, 500 epochs, all tried:" in block(page, "recipe")
    final = [line for line in rows(page, "recipe", "**scaffold-sq-brief**") if "25.50" in line]
    assert final[0][2:] == ["25.50", "25.00", "–", "–", "22.00"]
    assert rows(page, "recipe", "scaffold-sq-light")[-1][2:] == ["diverged", *["–"] * 4]
    # It is what the longer trainings are made with; what was chosen before stays beside it, and is what has its parts taken away.
    contending = [each.name for each in recipe_contenders(choose(named(folder)))]
    slower = "scaffold-sq-brief-lr1e-3-cosine"
    assert contending == ["scaffold-sq-brief", "scaffold-sq-light", slower, "scaffold-sq-neither-sphere"]
    assert [each.name for each in with_and_without(choose(named(folder)))][:2] == [
        "scaffold-sq-light",
        "scaffold-sq-light-no-ball",
    ]
    add("scaffold-sq-light-500epochs", exact={"psnr": 25.9, "usage": 1.0})
    add("scaffold-sq-brief-500epochs", exact={"psnr": 25.7, "usage": 1.0})
    add("vq-vae", exact={"psnr": 24.0, "lpips": 0.1})
    page = results_page(folder, None)
    assert "- 500 epochs: `scaffold-sq-brief` 25.70, best rival (of 1 " in block(page, "budgets")
    longest = [(line[0].strip("*"), line[1], line[3], line[5]) for line in rows(page, "longest")[2:]]
    assert longest == [
        ("scaffold-sq-light", "recipe before the final", "**25.90**", "–"),
        ("scaffold-sq-brief", "recipe", "25.70", "–"),
        ("vq-vae, its preset", "rival", "24.00", "**0.1000**"),
    ]


def test_rivals_that_come_near_are_asked_for_more_seeds(folder: Path, add: Add) -> None:
    tune(add, "vq-vae", *BEST_AT_1E_3)
    try_recipes(add, cvq=24.5)
    recipe, rival = "scaffold-cvq", "vq-vae-lr1e-3-cosine"
    add(f"{rival}-25epochs", epochs=25, exact={"psnr": 24.0, "usage": 1.0})
    assert "challengers" not in choose(named(folder))  # near to what?
    add(f"{recipe}-25epochs", epochs=25, exact={"psnr": 24.3, "usage": 1.0})
    assert "challengers" not in choose(named(folder))  # not near
    add(f"{recipe}-50epochs", epochs=50, exact={"psnr": 24.5, "usage": 1.0})
    add(f"{rival}-50epochs", epochs=50, exact={"psnr": 24.4, "usage": 1.0})
    # At a constant rate a look along the longest run tells of a length, and it is that run which is made again.
    add("vq-vae-lr2e-3-500epochs", exact={"psnr": 23.0, "usage": 1.0}, looks={50.0: 24.6, 500.0: 23.0})
    near = {"50": ["vq-vae-lr2e-3", rival]}
    chosen = choose(named(folder))
    assert chosen["challengers"] == near
    own = [f"{recipe}-{epochs}epochs" for epochs in BUDGETS[:-1]]
    rivals = {f"{rival}-50epochs", "vq-vae-lr2e-3-500epochs"}
    names = [run.name for run in challenges(chosen)]
    assert names[: len(own)] == own
    assert {*names[len(own) :]} == rivals
    # The preset is the recipe's longest; other seeds change nothing.
    add(RECIPE_PRESET, 1, exact={"psnr": 23.1, "usage": 1.0})
    add(f"{rival}-50epochs", 2, epochs=50, exact={"psnr": 23.0, "usage": 1.0})
    add(f"{recipe}-50epochs", 2, epochs=50, exact={"psnr": 24.6, "usage": 1.0})
    assert choose(named(folder))["challengers"] == {**near, "500": ["vq-vae-lr2e-3"]}
    assert rows(results_page(folder, None), "challengers")[2:] == [
        ["50", "vq-vae-lr2e-3", "24.55 ± 0.07", "2", "24.60", "1", "-0.05"],
        ["50", rival, "24.55 ± 0.07", "2", "23.70 ± 0.99", "2", "+0.85 ± 0.70"],
        ["500", "vq-vae-lr2e-3", "23.10", "1", "23.00", "1", "+0.10"],
    ]


def test_a_lead_over_seeds_that_failed_is_told_as_such(folder: Path, add: Add) -> None:
    tune(add, "vq-vae", *BEST_AT_1E_3)
    try_recipes(add, cvq=24.5)
    recipe, rival = "scaffold-cvq-50epochs", "vq-vae-lr1e-3-cosine"
    for seed, psnr in ((1, 24.5), (2, 24.7)):
        add(recipe, seed, epochs=50, exact={"psnr": psnr, "usage": 1.0})
    add(f"{rival}-50epochs", 1, epochs=50, exact={"psnr": 24.4, "usage": 1.0})
    add(f"{rival}-50epochs", 2, epochs=50, exact={"psnr": 12.0, "usage": 1.0}, looks={0.0: 12.0, 50.0: 12.0})
    page = results_page(folder, None)
    told = ["50", rival, "24.60 ± 0.14", "2", "18.20 ± 8.77", "1 of 2 collapsed", "+6.40 ± 6.20"]
    assert rows(page, "challengers")[2:] == [told]
    assert rows(page, "budgets", rival)[0][2] == "18.20 ± 8.77, 100.0% (1 of 2 collapsed)"
    add(recipe, 2, epochs=50, diverged="at step 9")
    assert rows(results_page(folder, None), "challengers")[2][2:4] == ["24.50", "1 of 2 diverged"]
    # One that collapsed is near to nobody, nor is anybody near to it.
    add(recipe, 1, epochs=50, exact={"psnr": 12.0, "usage": 1.0}, looks={0.0: 12.0, 50.0: 12.0})
    assert "challengers" not in choose(named(folder))


def test_the_recipe_s_longest_is_its_preset_unless_another_has_more_sound_seeds(folder: Path, add: Add) -> None:
    tune(add, "vq-vae", *BEST_AT_1E_3)
    try_recipes(add, cvq=24.5)

    def shown() -> str:
        return rows(results_page(folder, None), "budgets", "scaffold-cvq")[0][-1]

    add("scaffold-cvq-500epochs", 1, exact={"psnr": 25.3, "usage": 1.0})
    assert shown() == "25.30, 100.0%"
    add(RECIPE_PRESET, 1, exact={"psnr": 25.0, "usage": 1.0})
    assert shown() == "25.00, 100.0%"
    # By the first seed of everyone, whichever of the two stands for the recipe by now.
    add("vq-vae-lr1e-3-cosine-500epochs", exact={"psnr": 24.9, "usage": 1.0})
    near = {"500": ["vq-vae-lr1e-3-cosine"]}
    assert choose(named(folder))["challengers"] == near
    add("scaffold-cvq-500epochs", 2, exact={"psnr": 25.3, "usage": 1.0})
    assert shown() == "25.30, 100.0%"
    assert choose(named(folder))["challengers"] == near
    add(RECIPE_PRESET, 2, diverged="at step 9")
    assert shown() == "25.30, 100.0%"
    add("scaffold-cvq-500epochs", 2, diverged="at step 9")
    assert shown() == "25.00, 100.0% (1 of 2 diverged)"


def test_a_single_best_needs_no_final(folder: Path, add: Add) -> None:
    try_recipes(add, cvq=24.5)
    assert choose(named(folder)) == {"tuned": {}, "recipe": "scaffold-cvq"}


def test_curves_in_steps_are_those_of_the_training_that_they_are_named_after() -> None:
    in_fractions = load_system("cifar10/sq-vae", [*RECIPES["scaffold-sq-light"].settings, "--training.epochs=100"])
    in_steps = load_system("cifar10/sq-vae", [*RECIPES["scaffold-sq-brief"].settings, "--training.epochs=500"])
    fraction, step = in_fractions.quantizer, in_steps.quantizer
    assert (fraction.ball.time, fraction.arc.time, step.ball.time, step.arc.time) == (*["fraction"] * 2, *["steps"] * 2)
    assert step.ball.alpha * 49 * 100 == pytest.approx(fraction.ball.alpha, rel=1e-3)
    assert step.arc.decay * 49 * 100 == pytest.approx(fraction.arc.decay, rel=1e-3)
    assert step.arc.weight == fraction.arc.weight
