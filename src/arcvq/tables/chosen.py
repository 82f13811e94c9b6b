"""What the short runs chose: every system's rate and schedule, and the recipe. Computed from results, never typed.

chosen.json beside this file is how a sweep knows it; results/render.py writes it.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from arcvq.storage import read_json
from arcvq.tables.experiments import Experiment
from arcvq.tables.results import Cell, Result, alike
from arcvq.tables.studies import CONTENDERS, RECIPE, RECIPES, WITHOUT_SAMP, tuning

FILE = Path(__file__).with_name("chosen.json")
CHOSEN: dict[str, Any] = read_json(FILE, "the choice of the studies")
# A run that diverges leaves no result, so not all can be waited for.
ENOUGH = 2 / 3
Key = TypeVar("Key", bound=Hashable)


def held_out(results: list[Result]) -> Cell | None:
    """PSNR at the last look, where that was at images held out of the training set; over seeds."""
    return Cell.of([psnr for result in results if (psnr := result.held_out_psnr) is not None])


def scores(named: Mapping[str, list[Result]], runs: Mapping[Key, Experiment]) -> dict[Key, Cell]:
    """Of the runs that are measured, all in one precision."""
    measured = alike(named, (run.name for run in runs.values()))
    return {key: found for key, run in runs.items() if (found := held_out(measured.get(run.name, [])))}


def best(named: Mapping[str, list[Result]], runs: Mapping[Key, Experiment]) -> Key | None:
    """The one with the highest PSNR on held-out images, once enough of them are measured."""
    found = scores(named, runs)
    if len(found) < ENOUGH * len(runs):
        return None
    return max(found, key=lambda key: found[key].mean)


def choose(named: Mapping[str, list[Result]]) -> dict[str, Any]:
    """From CIFAR-10's results: what chosen.json should say."""
    tuned = {system: list(how) for system in CONTENDERS if (how := best(named, tuning(system)))}
    recipe = best(named, {name: run for name, run in recipe_runs().items() if name != WITHOUT_SAMP})
    return {"tuned": tuned} | ({"recipe": recipe} if recipe else {})


def recipe_runs() -> dict[str, Experiment]:
    """Recipe → the short run that tries it."""
    return dict(zip(RECIPES, RECIPE))


def chosen_text(named: Mapping[str, list[Result]]) -> str:
    return json.dumps(choose(named), indent=2) + "\n"
