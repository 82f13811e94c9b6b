"""The studies whose runs are compared with one another: matrices, rankings, lengths of training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any

from arcvq.tables.chosen import Tuned, after, choose, held_out, lengths, presets, recipe_runs, scores, tried, tune
from arcvq.tables.experiments import Experiment
from arcvq.tables.results import Cell, Result, alike, cell, metric_text, number, of_run, precision_note, table
from arcvq.tables.rows import ABSENT, NOTHING, Grouped
from arcvq.tables.studies import (
    BUDGETS,
    CONTENDERS,
    GRID,
    GRID_RATES,
    LADDER,
    MULTIPLES,
    RECIPE_PRESET,
    RECIPES,
    SCHEDULES,
    How,
    budget_name,
    contenders,
    grid_name,
    preset_name,
    recipe_contenders,
    tuning,
)

DATA = "cifar10"
# What a better recipe is to reach after 500 epochs.
AIM = 25.5
TIMES = {"third": "⅓ ×", "same": "1 ×", "triple": "3 ×"}


def tuning_page(grouped: Grouped, _: dict[str, Any]) -> list[str]:
    """A row per system, a column per rate and schedule; the best of either schedule is bold. What was not asked for is left empty."""
    named = grouped.get(DATA, {})
    found = {system: tune(named, system) for system in CONTENDERS}
    asked = {how for each in found.values() for how in each.asked}
    columns = [how for how in product(LADDER, SCHEDULES) if how in asked]
    shown = [r for s, each in found.items() for r in _shown(named, tuning(s, each.asked).values())]
    rows = [[system, *(_tuning_cell(each, how) for how in columns), _settled(each)] for system, each in found.items()]
    return [*table(["system", *(", ".join(how) for how in columns), "chosen"], rows), *precision_note(shown)]


def _shown(named: dict[str, list[Result]], runs: Iterable[Experiment]) -> list[Result]:
    return [result for results in alike(named, [run.name for run in runs]).values() for result in results]


def _tuning_cell(each: Tuned, how: How) -> str:
    rate, schedule = how
    if how in each.scores:
        return _bold(number("psnr", each.scores[how].mean), each.settled and each.best.get(schedule) == rate)
    return "diverged" if how in each.ran else NOTHING if how in each.asked else ""


def _settled(each: Tuned) -> str:
    if each.settled:
        return ", ".join(f"{rate} {schedule}" for schedule, rate in each.best.items())
    return f"open, {len(each.ran)} of {len(each.asked)} tried"


def recipe_page(grouped: Grouped, _: dict[str, Any]) -> list[str]:
    """The candidates, best first; below them the three best of the tuned systems after as many epochs."""
    named, runs = grouped.get(DATA, {}), recipe_runs()
    found, chosen = scores(named, runs), choose(named).get("recipe")
    ranked = sorted(runs, key=lambda name: -found[name].mean if name in found else 0.0)
    measured = alike(named, (run.name for run in runs.values()))
    ran = tried(named, runs)
    rows = [
        [
            _bold(name, name == chosen),
            RECIPES[name].says,
            *short_cells(measured.get(runs[name].name, []), diverged=name in ran and name not in found),
        ]
        for name in ranked
    ]
    rivals = [rival for system in CONTENDERS if (rival := best_of(named, system))]
    nearest = {rival: of_run(named, rival.run) for rival in sorted(rivals, key=lambda rival: -rival.psnr)[:3]}
    for rival, results in nearest.items():
        says = "a tuned rival" if rival.settled else "a rival, its tuning open"
        rows.append([rival.run, says, *short_cells(results)])
    note = precision_note(r for results in (*measured.values(), *nearest.values()) for r in results)
    headings = ["candidate", "what it is", "PSNR, held out", "PSNR, exact", "usage"]
    settled = f"Chosen: `{chosen}`." if chosen else f"Open: {len(ran)} of {len(runs)} candidates tried."
    return [*table(headings, rows, left=2), "", settled, *note]


@dataclass(frozen=True)
class Best:
    """The best that a system was tried with so far, on held-out images; more is to be tried while it is not settled."""

    system: str
    run: str
    psnr: float
    settled: bool


def best_of(named: dict[str, list[Result]], system: str) -> Best | None:
    each = tune(named, system)
    if not each.best:
        return None
    how = max(((rate, schedule) for schedule, rate in each.best.items()), key=lambda how: each.scores[how].mean)
    return Best(system, tuning(system, [how])[how].name, each.scores[how].mean, each.settled)


def short_cells(results: list[Result], diverged: bool = False) -> list[str]:
    if diverged:
        return ["diverged", NOTHING, NOTHING]
    found = held_out(results)
    cells = [metric_text(metric, cell(results, "exact", metric), len(results), NOTHING) for metric in ("psnr", "usage")]
    return [metric_text("psnr", found, len(results), NOTHING), *cells]


def grid_page(grouped: Grouped, _: dict[str, Any]) -> list[str]:
    """Multiples of the paper's α·T and λ·T."""
    measured = alike(grouped.get(DATA, {}), (run.name for run in GRID))
    rows = [
        [f"α {TIMES[growth]}", f"λ {TIMES[decay]}"]
        + [_psnr_and_usage(measured.get(grid_name(growth, decay, rate), [])) for rate in GRID_RATES]
        for growth in MULTIPLES
        for decay in MULTIPLES
    ]
    note = precision_note(result for results in measured.values() for result in results)
    return [*table(["α·T", "λ·T", *(f"rate {rate}" for rate in GRID_RATES)], rows, left=2), *note]


def _psnr_and_usage(results: list[Result]) -> str:
    psnr, usage = held_out(results), cell(results, "exact", "usage")
    return f"{number('psnr', psnr.mean)}, {number('usage', usage.mean)}" if psnr and usage else NOTHING


Point = tuple[Cell | None, Cell | None]  # PSNR and usage


def points(named: dict[str, list[Result]]) -> dict[tuple[str, int], Point]:
    """Name and length → what came out on the test set; presets as they are are rivals too, tuned or not."""
    chosen, measured, as_they_are = choose(named), lengths(named), presets(named)
    found: dict[tuple[str, int], Point] = {}
    for preset in (*CONTENDERS, *([RECIPE_PRESET] if "recipe" in chosen else [])):
        results = as_they_are.get(preset, [])
        found[preset_name(preset), BUDGETS[-1]] = cell(results, "exact", "psnr"), cell(results, "exact", "usage")
    for each in contenders(chosen):
        found |= {(each.name, epochs): after(measured, each, epochs) for epochs in BUDGETS if each.tells_of(epochs)}
    return found


def lengths_of_all(named: dict[str, list[Result]]) -> dict[int, dict[str, float | None]]:
    """Length → name → PSNR, of everyone that is or is to be trained for so long."""
    found: dict[int, dict[str, float | None]] = {epochs: {} for epochs in BUDGETS}
    for (name, epochs), (psnr, _) in points(named).items():
        found[epochs][name] = psnr.mean if psnr else None
    return found


def budgets_page(grouped: Grouped, printed: dict[str, Any]) -> list[str]:
    """A row per system and schedule, a column per length; then who is ahead, and what was aimed at."""
    named = grouped.get(DATA, {})
    chosen, measured, at = choose(named), lengths(named), points(named)
    ours, controls = sides(chosen)
    names = sorted(dict.fromkeys(name for name, _ in at), key=lambda name: (name in ours, name in controls))
    diverged = {name for name, results in measured.items() if all(result.diverged for result in results)}
    rows = [
        [
            name,
            *(
                "diverged"
                if budget_name(name, n) in diverged and at[name, n][0] is None
                else _budget_cell(*at.get((name, n), (None, None)))
                for n in BUDGETS
            ),
        ]
        for name in names
    ]
    untuned = [system for system in CONTENDERS if system not in chosen["tuned"]]
    lines = table(["system", *(f"{epochs} epochs" for epochs in BUDGETS)], rows) if rows else []
    shown = [*measured.values(), *presets(named).values()]
    lines += [*precision_note(result for results in shown for result in results), ""]
    lines += [f"Not tuned yet: {', '.join(untuned)}.", ""] if untuned else []
    if not ours:
        return [*lines, "No recipe is chosen yet."]
    lines += [f"- {epochs} epochs: {standing(chosen, psnrs)}" for epochs, psnrs in lengths_of_all(named).items()]
    return [*lines, *aims(best_of_longest(named), printed)]


def _budget_cell(psnr: Cell | None, usage: Cell | None) -> str:
    if psnr is None:
        return NOTHING
    return metric_text("psnr", psnr, psnr.seeds) + (f", {number('usage', usage.mean)}" if usage else "")


def sides(chosen: dict[str, Any]) -> tuple[list[str], list[str]]:
    """What the rows of the recipe are called, and those of the recipe without SAMP."""
    every = recipe_contenders(chosen)
    ours = [each.name for each in every if each.system == chosen["recipe"]]
    controls = [each.name for each in every if each.system != chosen["recipe"]]
    return [*ours, preset_name(RECIPE_PRESET)] if ours else [], controls


def standing(chosen: dict[str, Any], psnrs: dict[str, float | None]) -> str:
    """The recipe beside the best of all the others, whichever of their rows that is, and beside itself without SAMP."""
    ours, controls = sides(chosen)
    found = {name: psnr for name, psnr in psnrs.items() if psnr is not None}
    own = max((name for name in ours if name in found), key=lambda name: found[name], default=None)
    asked = [name for name in psnrs if name not in (*ours, *controls)]
    rivals = [name for name in asked if name in found]
    if own is None or not rivals:
        return ABSENT
    first = max(rivals, key=lambda name: found[name])
    count = f"of {len(rivals)}" + f" measured of {len(asked)}" * (len(rivals) < len(asked))
    said = f"`{own}` {number('psnr', found[own])}, best rival ({count}) `{first}` {number('psnr', found[first])}: "
    said += _gap(found[own] - found[first])
    for name in controls:
        if name in found:
            said += f"; without SAMP (`{name}`) {number('psnr', found[name])}: {_gap(found[own] - found[name])}"
    return said


def _gap(difference: float) -> str:
    gap = round(difference, 2)
    return f"{'ahead' if gap > 0 else 'behind'} by {abs(gap):.2f}" if gap else "level"


def best_of_longest(named: dict[str, list[Result]]) -> list[Result]:
    """The recipe's row of the longest training with the highest PSNR."""
    measured, (ours, _) = lengths(named) | presets(named), sides(choose(named))
    runs = [RECIPE_PRESET, *(budget_name(name, BUDGETS[-1]) for name in ours)]
    found = {run: psnr.mean for run in runs if (psnr := cell(measured.get(run, []), "exact", "psnr"))}
    return measured[max(found, key=lambda run: found[run])] if found else []


def aims(results: list[Result], printed: dict[str, Any]) -> list[str]:
    """PSNR under `exact`, and an rFID under `paper` below the lowest that the paper prints."""
    psnr, rfid = cell(results, "exact", "psnr"), cell(results, "paper", "rfid")
    lowest = min(
        (row["rfid"] for row in printed.get(DATA, {}).values() if isinstance(row, dict) and "rfid" in row),
        default=None,
    )
    lines = [f"- Aim, PSNR {AIM} after {BUDGETS[-1]} epochs: {_reached(psnr, 'psnr', psnr and psnr.mean >= AIM)}"]
    if lowest is not None:
        lines.append(
            f"- Aim, an rFID below the lowest in print, {lowest}: {_reached(rfid, 'rfid', rfid and rfid.mean < lowest)}"
        )
    return lines


def _reached(found: Any, metric: str, reached: Any) -> str:
    if found is None:
        return "not measured"
    return f"{number(metric, found.mean)}, {'reached' if reached else 'not reached'}"


def _bold(text: str, yes: bool) -> str:
    return f"**{text}**" if yes else text
