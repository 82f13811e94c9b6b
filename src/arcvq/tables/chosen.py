"""What the short runs chose: every system's rate and schedule, and the recipe. Computed from results, never typed.

chosen.json beside this file is how a sweep knows it; results/render.py writes it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from arcvq.storage import read_json
from arcvq.tables.experiments import Experiment
from arcvq.tables.results import Cell, Result, alike, cell, sound
from arcvq.tables.studies import (
    BUDGETS,
    CANDIDATES,
    CONTENDERS,
    FAR,
    LADDER,
    LEARNING,
    LEVEL,
    NEAR,
    RATES,
    RECIPE,
    RECIPE_PRESET,
    SCHEDULES,
    VARIANTS,
    WITHOUT_SAMP,
    Contender,
    How,
    budget_name,
    contenders,
    finals,
    tuning,
    with_and_without,
)

FILE = Path(__file__).with_name("chosen.json")
CHOSEN: dict[str, Any] = read_json(FILE, "the choice of the studies")
Key = TypeVar("Key", bound=Hashable)


def held_out(results: list[Result]) -> Cell | None:
    """PSNR at the last look, where that was at images held out of the training set; over seeds."""
    return Cell.of([psnr for result in results if (psnr := result.held_out_psnr) is not None])


def scores(named: Mapping[str, list[Result]], runs: Mapping[Key, Experiment]) -> dict[Key, Cell]:
    """Of the runs that are measured, all in one precision."""
    measured = alike(named, (run.name for run in runs.values()))
    return {key: found for key, run in runs.items() if (found := held_out(measured.get(run.name, [])))}


def tried(named: Mapping[str, list[Result]], runs: Mapping[Key, Experiment]) -> list[Key]:
    """Those that are measured and those that diverged: nothing is chosen before they are all."""
    found = alike(named, (run.name for run in runs.values()), diverged=True)
    return [key for key, run in runs.items() if run.name in found]


def best(named: Mapping[str, list[Result]], runs: Mapping[Key, Experiment]) -> Key | None:
    """The one with the highest PSNR on held-out images, once all are tried."""
    found = scores(named, runs)
    if len(tried(named, runs)) < len(runs):
        return None
    return max(found, key=lambda key: found[key].mean, default=None)


def choose(named: Mapping[str, list[Result]]) -> dict[str, Any]:
    """From CIFAR-10's results: what chosen.json should say."""
    chosen = _on_held_out_images(named)
    near = challengers(named, chosen)
    return chosen | ({"challengers": near} if near else {})


def challengers(named: Mapping[str, list[Result]], chosen: Mapping[str, Any]) -> dict[str, list[str]]:
    """By length: the rivals that are near to the recipe, or above it, by the first seed of everyone. More seeds must not change who is
    asked for them."""
    compared, found = contenders(chosen), {}
    measured = _lengths(
        {name: [result for result in results if result.seed == 1] for name, results in named.items()}, chosen
    )
    first = {name: [result for result in results if not result.collapsed] for name, results in measured.items()}
    for epochs in BUDGETS:
        psnr = {each.name: told.mean for each in compared if (told := after(first, each, epochs)[0])}
        own = psnr.get(chosen.get("recipe", ""))
        rivals = [each.name for each in compared if each.system in CONTENDERS and each.name in psnr]
        if own is not None and (near := [name for name in rivals if psnr[name] > own - NEAR]):
            found[str(epochs)] = near
    return found


def _on_held_out_images(named: Mapping[str, list[Result]]) -> dict[str, Any]:
    """The rates and the recipe."""
    tried_with = {system: tune(named, system) for system in CONTENDERS}
    found: dict[str, Any] = {"tuned": {s: each.best for s, each in tried_with.items() if each.settled and each.best}}
    further = {s: [how for how in each.asked if how not in LEARNING] for s, each in tried_with.items()}
    if any(further.values()):
        found["further"] = {system: hows for system, hows in further.items() if hows}
    short = best(named, recipe_runs())
    if short is None:
        return found
    last = finalists(named, short)
    recipe = best(named, finals(last)) or short
    return (
        found
        | {"recipe": recipe}
        | ({"short": short} if recipe != short else {})
        | ({"finals": last} if len(last) > 1 else {})
    )


def finalists(named: Mapping[str, list[Result]], short: str) -> list[str]:
    """The candidates that are level with the best after a short training, and the variants of them."""
    found = scores(named, recipe_runs())
    level = [name for name in found if found[name].mean > found[short].mean - LEVEL]
    return [each for name in level for each in (name, *(variant.name for variant in VARIANTS.get(name, ())))]


@dataclass(frozen=True)
class Tuned:
    """How a system's tuning stands: what it is to be tried with, what of that it was, and the best rate of a schedule. It is settled
    when no schedule's best lies at an end of what it was tried with. A schedule under which everything diverged has no best, nor has
    one that is `FAR` behind the other."""

    asked: list[How]
    ran: list[How]
    best: dict[str, str]
    scores: dict[How, Cell]

    @property
    def settled(self) -> bool:
        return len(self.ran) == len(self.asked)


def tune(named: Mapping[str, list[Result]], system: str) -> Tuned:
    runs = tuning(system, product(LADDER, SCHEDULES))
    found, ran = scores(named, runs), tried(named, runs)
    asked: list[How] = []
    best_rates: dict[str, str] = {}
    for schedule in SCHEDULES:
        first, last = LADDER.index(RATES[0]), LADDER.index(RATES[-1])
        while all((rate, schedule) in ran for rate in LADDER[first : last + 1]):
            measured = [rate for rate in LADDER[first : last + 1] if (rate, schedule) in found]
            if not measured:
                break
            best_rates[schedule] = max(measured, key=lambda rate: found[rate, schedule].mean)
            at = LADDER.index(best_rates[schedule])
            if at == first > 0:
                first -= 1
            elif at == last < len(LADDER) - 1:
                last += 1
            else:
                break
        asked += [(rate, schedule) for rate in LADDER[first : last + 1]]
    psnr = {schedule: found[rate, schedule].mean for schedule, rate in best_rates.items()}
    near = {schedule: rate for schedule, rate in best_rates.items() if psnr[schedule] > max(psnr.values()) - FAR}
    return Tuned(asked, [how for how in asked if how in ran], near, found)


def recipe_runs(*, controls: bool = False) -> dict[str, Experiment]:
    """Recipe → the short run that tries it; on demand with those that are no recipe for SAMP."""
    runs = zip(CANDIDATES, RECIPE)
    return {each.name: run for each, run in runs if controls or each.name not in WITHOUT_SAMP}


def lengths(named: Mapping[str, list[Result]]) -> dict[str, list[Result]]:
    """The runs of the contenders at every length, and of what was chosen with SAMP and without, all in one precision. The recipe's
    longest is its preset, unless one of its own has more seeds."""
    return _lengths(named, choose(named))


def _lengths(named: Mapping[str, list[Result]], chosen: Mapping[str, Any]) -> dict[str, list[Result]]:
    runs = [run.name for each in (*contenders(chosen), *with_and_without(chosen)) for run in each.experiments()]
    found = alike(named, [*runs, RECIPE_PRESET], diverged=True)
    preset, longest = found.pop(RECIPE_PRESET, []), budget_name(chosen.get("recipe", ""), BUDGETS[-1])
    if "recipe" in chosen and preset and sound(preset) >= sound(found.get(longest, [])):
        found[longest] = preset
    return found


def presets(named: Mapping[str, list[Result]]) -> dict[str, list[Result]]:
    """The contenders and the recipe as their presets are, those that were trained so; in the precision of the runs that they stand
    beside, and like them with those that diverged."""
    beside, every = lengths(named), (*CONTENDERS, RECIPE_PRESET)
    found = alike(named, [*beside, *every], diverged=True)
    return {preset: found[preset] for preset in every if preset in found}


def after(measured: Mapping[str, list[Result]], each: Contender, epochs: int) -> tuple[Cell | None, Cell | None]:
    """PSNR and usage on the test set after so many epochs: of a run of that length or of a look along the longest."""
    if epochs in each.lengths:
        results = measured.get(budget_name(each.name, epochs), [])
        return cell(results, "exact", "psnr"), cell(results, "exact", "usage")
    longest = measured.get(budget_name(each.name, BUDGETS[-1]), []) if each.looks else []
    looks = [look for result in longest for look in result.looks if look["epoch"] == epochs]
    psnr, usage = (
        Cell.of([look[what] for look in looks if look.get(what) is not None and math.isfinite(look[what])])
        for what in ("psnr", "usage")
    )
    return psnr, usage


def chosen_text(named: Mapping[str, list[Result]]) -> str:
    return json.dumps(choose(named), indent=2) + "\n"
