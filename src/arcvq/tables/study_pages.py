"""The studies whose runs are compared with one another: matrices, rankings, lengths of training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from arcvq.tables.chosen import Tuned, choose, held_out, recipe_runs, scores, tune
from arcvq.tables.experiments import Experiment
from arcvq.tables.results import (
    METRICS,
    Result,
    alike,
    cell,
    collapsed,
    fate,
    metric_text,
    number,
    of_run,
    precision_note,
    table,
)
from arcvq.tables.rows import NOTHING, Grouped
from arcvq.tables.studies import (
    AS_IN_THE_PAPER,
    BUDGETS,
    CONTENDERS,
    CURVES,
    DATA,
    GRID,
    GRID_RATES,
    LADDER,
    MULTIPLES,
    RECIPE,
    RECIPES,
    SCHEDULES,
    SHAPED,
    How,
    finals,
    grid_name,
    on_top,
    tuning,
)

HEADINGS = ["candidate", "what it is", "PSNR, held out", "PSNR, exact", "usage"]
QUICK = (("exact", "psnr"), ("exact", "usage"))
WHOLE = (*QUICK, ("paper", "lpips"), ("paper", "rfid"))
TIMES = {"third": "⅓ ×", "same": "1 ×", "triple": "3 ×"}


def tuning_page(grouped: Grouped, _: dict[str, Any]) -> list[str]:
    """A row per system, a column per rate and schedule; the best of either schedule is bold. What was not asked for is left empty."""
    named = grouped.get(DATA, {})
    found = {system: tune(named, system) for system in CONTENDERS}
    asked = {how for each in found.values() for how in each.asked}
    columns = [how for how in product(LADDER, SCHEDULES) if how in asked]
    shown = [r for s, each in found.items() for r in _shown(named, tuning(s, each.asked).values())]
    dead = {
        (s, how) for s in CONTENDERS for how, run in tuning(s, columns).items() if collapsed(of_run(named, run.name))
    }
    rows = [
        [s, *("collapsed" if (s, how) in dead else _tuning_cell(each, how) for how in columns), _settled(each)]
        for s, each in found.items()
    ]
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
    """The candidates, best first; below them the three best of the tuned systems after as many epochs, and the final."""
    named = grouped.get(DATA, {})
    chosen = choose(named)
    ran, lines, shown = _ranking(named, recipe_runs(controls=True), chosen.get("short", chosen.get("recipe")), QUICK)
    rivals = [rival for system in CONTENDERS if (rival := best_of(named, system))]
    for rival in sorted(rivals, key=lambda rival: -rival.psnr)[:3]:
        results = of_run(named, rival.run)
        says = "a tuned rival" if rival.settled else "a rival, its tuning open"
        lines.append([rival.run, says, *short_cells(results)])
        shown += results
    page = table(HEADINGS, lines, left=2)
    if "recipe" not in chosen:
        return [*page, "", f"Open: {ran} of {len(RECIPE)} candidates tried.", *precision_note(shown)]
    if "finals" in chosen:
        last = finals(chosen["finals"])
        ran, lines, also = _ranking(named, last, chosen["recipe"], WHOLE)
        shown += also
        decided = ran == len(last)
        page += ["", f"The final, {BUDGETS[-1]} epochs, {'all' if decided else f'{ran} of {len(last)}'} tried:", ""]
        page += table(
            [*HEADINGS, *(f"{METRICS[metric][0]}, {protocol}" for protocol, metric in WHOLE[2:])], lines, left=2
        )
        if not decided:
            page += ["", "Until all are, the choice of the shorter trainings stands."]
    return [*page, "", f"Chosen: `{chosen['recipe']}`.", *precision_note(shown)]


def _ranking(
    named: dict[str, list[Result]], runs: dict[str, Experiment], chosen: str | None, columns: Sequence[tuple[str, str]]
) -> tuple[int, list[list[str]], list[Result]]:
    """How many of these recipes are tried, a row for each, best first, and their results."""
    found, ran = scores(named, runs), alike(named, (run.name for run in runs.values()), diverged=True)
    lines = [
        [_bold(name, name == chosen), RECIPES[name].says, *short_cells(ran.get(runs[name].name, []), columns)]
        for name in sorted(runs, key=lambda name: -found[name].mean if name in found else 0.0)
    ]
    return len(ran), lines, [result for results in ran.values() for result in results]


def schedules_page(grouped: Grouped, _: dict[str, Any]) -> list[str]:
    """The paper's exponential curves, and one of them along another."""
    named = grouped.get(DATA, {})
    says = {AS_IN_THE_PAPER: "M = exp(α·t), γ = exp(−λ·t)", **{run.name: run.says for run in SHAPED}}
    measured = alike(named, says, diverged=True)
    rows = [[f"`{name}`", what, *short_cells(measured.get(name, []))] for name, what in says.items()]
    shown = [result for results in measured.values() for result in results]
    return [*table(["run", *HEADINGS[1:]], rows, left=2), *precision_note(shown)]


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


def short_cells(results: list[Result], columns: Sequence[tuple[str, str]] = QUICK) -> list[str]:
    """PSNR on held-out images, then what the test set says."""
    if word := fate(results):
        return [word, *[NOTHING] * len(columns)]
    cells = [
        metric_text(metric, cell(results, protocol, metric), len(results), NOTHING) for protocol, metric in columns
    ]
    return [metric_text("psnr", held_out(results), len(results), NOTHING), *cells]


def on_top_page(grouped: Grouped, _: dict[str, Any]) -> list[str]:
    """Each system alone, at the best rate under cosine decay, and with SAMP at that rate."""
    named = grouped.get(DATA, {})
    chosen = choose(named)
    runs = on_top(chosen)
    if not runs:
        return ["No system is tuned yet."]
    alone = {system: chosen["tuned"][system]["cosine"] for system, _ in runs}
    base = {system: tuning(system, [(rate, "cosine")])[rate, "cosine"].name for system, rate in alone.items()}
    measured = alike(named, [*base.values(), *(run.name for run in runs.values())], diverged=True)
    rows = [
        [system, rate, _psnr_and_usage(measured.get(base[system], []))]
        + [_psnr_and_usage(measured.get(runs[system, kind].name, [])) for kind in CURVES]
        for system, rate in alone.items()
    ]
    note = precision_note(result for results in measured.values() for result in results)
    return [*table(["system", "rate", "alone", "the paper's curves", "taken down early"], rows), *note]


def grid_page(grouped: Grouped, _: dict[str, Any]) -> list[str]:
    """Multiples of the paper's α·T and λ·T."""
    measured = alike(grouped.get(DATA, {}), (run.name for run in GRID), diverged=True)
    rows = [
        [f"α {TIMES[growth]}", f"λ {TIMES[decay]}"]
        + [_psnr_and_usage(measured.get(grid_name(growth, decay, rate), [])) for rate in GRID_RATES]
        for growth in MULTIPLES
        for decay in MULTIPLES
    ]
    note = precision_note(result for results in measured.values() for result in results)
    return [*table(["α·T", "λ·T", *(f"rate {rate}" for rate in GRID_RATES)], rows, left=2), *note]


def _psnr_and_usage(results: list[Result]) -> str:
    if word := fate(results):
        return word
    psnr, usage = held_out(results), cell(results, "exact", "usage")
    return f"{number('psnr', psnr.mean)}, {number('usage', usage.mean)}" if psnr and usage else NOTHING


def _bold(text: str, yes: bool) -> str:
    return f"**{text}**" if yes else text
