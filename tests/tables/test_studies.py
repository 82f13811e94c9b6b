"""The runs of the studies: which there are, and what sets them apart."""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from study_results import VQ_VAE

from arcvq.systems import load_system
from arcvq.tables import Experiment
from arcvq.tables.chosen import CHOSEN
from arcvq.tables.studies import (
    BUDGETS,
    CONTENDERS,
    CONTROLS,
    GRID,
    HEAVIER,
    RECIPE,
    RECIPES,
    SHAPED,
    STRETCHED,
    WITHOUT_SAMP,
    budgets,
    on_top,
    tuning,
    tunings,
    with_and_without,
)


def test_the_longest_training_is_tried_at_a_lower_rate_too() -> None:
    found = [run.name for run in budgets({"tuned": {"vq-vae": {"constant": "4e-3", "cosine": "2e-3"}}})]
    cosine = [f"vq-vae-lr2e-3-cosine-{epochs}epochs" for epochs in BUDGETS]
    assert found == ["vq-vae-lr4e-3-500epochs", *cosine, "vq-vae-lr1e-3-cosine-500epochs"]


def test_what_is_chosen_is_run_at_every_length() -> None:
    found = budgets({"tuned": VQ_VAE, "recipe": "scaffold-ema"})
    names = ["scaffold-ema-25epochs", "vq-vae-lr2e-3-500epochs", "vq-vae-lr1e-3-cosine-25epochs"]
    assert [run.name for run in (found[0], *found[5:7])] == names
    assert len(found) == 2 * len(BUDGETS) + 1  # the recipe's longest is its preset
    assert [run.quick for run in found[:6]] == [True] * 4 + [False] * 2
    system: Any = load_system(f"cifar10/{found[0].preset}", found[0].settings)
    assert (system.training.epochs, system.data.holdout, system.quantizer.metric) == (25, None, "euclidean")
    assert system.quantizer.arc.time == system.quantizer.ball.time == "fraction"
    both = {"constant": "1e-3", "cosine": "1e-3"}
    assert len(budgets({"tuned": {"sq-vae": both}})) == 2 * len(BUDGETS)
    assert len(budgets({"tuned": {"fsq": {"cosine": "4e-3"}}})) == len(BUDGETS) + 1  # all at a constant rate diverged
    assert budgets({"tuned": {}, "recipe": "one of another version"}) == []
    assert budgets(CHOSEN) == budgets(json.loads(json.dumps(CHOSEN)))


def test_a_recipe_is_run_at_the_lower_rate_too_and_without_samp() -> None:
    lower, *without = budgets({"tuned": {}, "recipe": "scaffold-sq-light"})[len(BUDGETS) - 1 :]
    assert lower.name == "scaffold-sq-light-lr1e-3-cosine-500epochs"
    system: Any = load_system(f"cifar10/{lower.preset}", lower.settings)
    assert (system.training.learning_rate, system.training.schedule, system.training.epochs) == (1e-3, "cosine", 500)
    assert system.quantizer == load_system("cifar10/sq-vae", RECIPES["scaffold-sq-light"].settings).quantizer
    assert [run.name for run in without] == [f"scaffold-sq-neither-sphere-{epochs}epochs" for epochs in BUDGETS]
    control: Any = load_system(f"cifar10/{without[0].preset}", without[0].settings)
    assert (control.quantizer.arc, control.quantizer.ball, control.quantizer.start) == (None, None, "unit-sphere")
    changed = replace(control.quantizer, arc=system.quantizer.arc, ball=system.quantizer.ball)
    assert replace(changed, start=system.quantizer.start) == system.quantizer
    # One that has that rate already is not run twice at it.
    names = [run.name for run in budgets({"tuned": {}, "recipe": "scaffold-euclidean"})]
    own = [f"scaffold-euclidean-{epochs}epochs" for epochs in BUDGETS[:-1]]
    assert names == [*own, *(f"scaffold-neither-{epochs}epochs" for epochs in BUDGETS)]
    assert set(CONTROLS.values()) <= set(WITHOUT_SAMP)


@pytest.mark.parametrize("recipe", ["scaffold-sq-light", "scaffold-euclidean"])
def test_without_a_part_a_recipe_keeps_the_rest(recipe: str) -> None:
    whole: Any = load_system(f"cifar10/{RECIPES[recipe].preset}", RECIPES[recipe].settings)
    for part, each in zip(("ball", "arc"), with_and_without({"recipe": recipe})[1:-1], strict=True):
        assert (each.name, each.lengths) == (f"{recipe}-no-{part}", (25, 50, 100))
        left: Any = load_system(f"cifar10/{each.run.preset}", each.run.settings)
        assert getattr(left.quantizer, part) is None
        # The ball puts SQ-VAE's codes on the sphere in its first step: without it they start there.
        starts = {"start": whole.quantizer.start}
        assert part == "arc" or left.quantizer.start == "unit-sphere"
        assert replace(left.quantizer, **{part: getattr(whole.quantizer, part)}, **starts) == whole.quantizer
        assert left.training == whole.training
    assert with_and_without({}) == with_and_without({"recipe": "scaffold-cvq"}) == []


def test_the_beginning_of_a_constant_rate_s_run_is_a_short_run() -> None:
    (run,) = (run for run in budgets({"tuned": VQ_VAE}) if run.name == "vq-vae-lr2e-3-500epochs")
    training = load_system(f"cifar10/{run.preset}", run.settings).training
    assert (training.epochs, training.schedule, training.evaluation_images) == (500, "constant", 10_000)
    every = training.epochs / training.evaluations
    assert all(epochs % every == 0 for epochs in BUDGETS)  # a look at each length


@pytest.mark.parametrize("system", CONTENDERS)
def test_whose_settings_follow_the_length(system: str) -> None:
    """The first steps of a short and of a long training are the same, but for those."""
    settings = ["--tokenizer.width=8", "--tokenizer.latent_dim=8"]
    settings += ["--quantizer.codebook_size=64"] if system not in ("fsq", "lfq") else []

    def losses(length: int) -> list[float]:
        torch.manual_seed(0)
        tokenizer = load_system(f"cifar10/{system}", settings).build_tokenizer(3, (16, 16), length).train()
        for part in ("encoder", "quantizer", "decoder") if system == "hvq-vae" else ():
            getattr(tokenizer, part).requires_grad_(False)  # its first stage
        found = []
        for _ in range(4):
            _, quantized = tokenizer(torch.rand(4, 3, 16, 16) * 2 - 1)
            tokenizer.after_step(quantized)
            found.append(quantized.quantized.sum().item())
        return found

    assert (losses(1000) != losses(5000)) == (system in STRETCHED)


def test_short_runs_differ_in_what_is_studied_alone() -> None:
    for run in (*tunings(CHOSEN), *RECIPE, *GRID, *SHAPED, *on_top(CHOSEN).values()):
        system: Any = load_system(f"cifar10/{run.preset}", run.settings)
        assert sum(stage.epochs for stage in system.training.plan()) == 100, run.name
        assert (system.data.holdout, system.data.batch_size) == (5000, 1024)
        assert (system.training.evaluation_images, system.training.evaluations) == (5000, 10)
        assert system.training.warmup_steps == 100, run.name  # the same for everyone
    settings = [tuple(asdict(run).values())[1:3] for run in (*tunings(CHOSEN), *RECIPE, *GRID)]
    assert len(set(settings)) == len(settings)
    (same,) = (run for run in GRID if run.name == "grid-alpha-same-decay-same-lr1e-3")
    quantizer: Any = load_system("cifar10/arcvq-vae", same.settings).quantizer
    # The paper's α·T and λ·T: 24,500 steps at 3e-4 and 5e-4.
    assert (quantizer.ball.alpha, quantizer.arc.decay) == pytest.approx((7.35, 12.25), rel=1e-3)


def test_another_rate_on_top_of_a_quantizer_is_another_run() -> None:
    (one, other) = (on_top({"tuned": {"simvq": {"cosine": rate}}})["simvq", "early"] for rate in ("2e-3", "4e-3"))
    assert (one.name, other.name) == ("top-simvq-lr2e-3-cosine-early", "top-simvq-lr4e-3-cosine-early")
    assert on_top({"tuned": {"simvq": {"constant": "2e-3"}, "fsq": {"cosine": "2e-3"}}}) == on_top({}) == {}


@pytest.mark.parametrize(("system", "kind"), on_top(CHOSEN))
def test_on_top_of_a_quantizer_nothing_but_the_prior_is_new(system: str, kind: str) -> None:
    run = on_top(CHOSEN)[system, kind]
    ((_, plain),) = tuning(system, [(CHOSEN["tuned"][system]["cosine"], "cosine")]).items()
    alone: Any = load_system(f"cifar10/{system}", plain.settings)
    topped: Any = load_system(f"cifar10/{run.preset}", run.settings)
    assert topped.quantizer.arc is not None
    assert topped.quantizer.ball is not None
    for part in ("data", "tokenizer", "objective", "training"):
        assert getattr(topped, part) == getattr(alone, part)
    # The ball puts codes on the sphere in its first step, and there they start.
    without = {"arc": None, "ball": None, "start": alone.quantizer.start}
    shared = {key: value for key, value in asdict(alone.quantizer).items() if key not in ("arc", "ball")}
    assert asdict(replace(topped.quantizer, **without)).items() >= shared.items()


@pytest.mark.parametrize("run", [*RECIPE, *HEAVIER.values()], ids=lambda run: run.name)
def test_every_candidate_takes_a_step(run: Experiment) -> None:
    system = load_system(
        f"cifar10/{run.preset}", [*run.settings, "--tokenizer.width=8", "--quantizer.codebook_size=16"]
    )
    tokenizer = system.build_tokenizer(3, (16, 16), 10).train()
    reconstruction, quantized = tokenizer(torch.rand(4, 3, 16, 16) * 2 - 1)
    (reconstruction.mean() + quantized.loss).backward()
    tokenizer.quantizer.after_step(quantized)
    assert quantized.loss.isfinite()
    plain = [HEAVIER[system] for system in ("vq-vae", "cvq-vae", "vq-vae-cosine")]
    without = run in plain or any(part in run.name for part in ("no-arc", "neither"))
    assert ("arc" in quantized.losses) == (not without)
