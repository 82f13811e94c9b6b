"""Ours beside print: by how much, whether that is more than the spread, and what is known to move it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from arcvq.tables.chosen import choose
from arcvq.tables.paper import TABLE_1, TABLES, Row, Table
from arcvq.tables.results import METRICS, Result, alike, cell, number, precision_note, revision_mark, table
from arcvq.tables.rows import ABSENT, NOTHING, Grouped, printed_numbers, variants
from arcvq.tables.studies import BUDGETS, DATA, HEAVIER, budget_name, contenders

METRICS_IN_PRINT = tuple(metric for metric, (_, _, better) in METRICS.items() if better)


@dataclass(frozen=True)
class Beside:
    """A run that is measured under `paper` and has numbers in print."""

    label: str
    run: str
    results: list[Result]
    numbers: dict[str, float]


def beside_print(data: str, named: dict[str, list[Result]], printed: dict[str, Any]) -> Iterator[Beside]:
    """Once for every system and print, in the order of the tables."""
    seen = set()
    for each in TABLES:
        for row in each.rows if isinstance(each, Table) else ():
            numbers = printed_numbers(printed, data, row)
            if not numbers or (row.run, row.print_of) in seen:
                continue
            seen.add((row.run, row.print_of))
            where = "" if row.print_of == "main" else f", beside the {row.print_of}"
            for label, results in variants(named, Row(row.run, row.run)):
                measured = [result for result in results if result.metrics("paper") is not None]
                if measured:
                    yield Beside(f"{label}{where}{revision_mark(measured, 'paper')}", row.run, measured, numbers)


def differences(grouped: Grouped, printed: dict[str, Any]) -> list[str]:
    """Ours under `paper` minus print."""
    lines: list[str] = []
    for data, named in grouped.items():
        rows = [
            [each.label, str(len(each.results))]
            + [difference(each.results, metric, each.numbers.get(metric)) for metric in METRICS_IN_PRINT]
            for each in beside_print(data, named, printed)
        ]
        if rows:
            headings = ["system", "seeds", *(METRICS[m][0] for m in METRICS_IN_PRINT)]
            lines += [f"**{data}**", "", *table(headings, rows), ""]
    return lines or ["Nothing is measured under `paper` yet."]


def difference(results: list[Result], metric: str, print_: float | None) -> str:
    """In bold where it is larger than the spread, with the spread; one seed has none."""
    found = cell(results, "paper", metric)
    if found is None or print_ is None:
        return NOTHING
    gap = found.mean - print_
    sign, zero = format(gap, f"+{METRICS[metric][1]}"), number(metric, 0.0)
    if sign.lstrip("+-") == zero:
        return zero
    word = "better" if gap * METRICS[metric][2] > 0 else "worse"
    if found.spread is None:
        return f"{sign} {word}, spread unknown"
    spread = number(metric, found.spread)
    return f"**{sign}** {word}, spread {spread}" if abs(gap) > found.spread else f"{sign}, within the spread {spread}"


def protocol_effect(grouped: Grouped) -> list[str]:
    """The same weights measured both ways: `paper` minus `exact`. What collapsed is left out."""
    rows = []
    for data, named in grouped.items():
        pairs = [
            (paper, exact)
            for results in named.values()
            for result in results
            if not result.collapsed
            and (paper := result.metrics("paper")) is not None
            and (exact := result.metrics("exact")) is not None
        ]
        if pairs:
            rows.append([data, str(len(pairs)), *(_mean_gap(pairs, metric) for metric in METRICS_IN_PRINT)])
    if not rows:
        return ["No run is measured under both protocols yet."]
    return table(["data", "runs", *(METRICS[m][0] for m in METRICS_IN_PRINT)], rows)


def _mean_gap(pairs: list[tuple[dict[str, float], dict[str, float]]], metric: str) -> str:
    gaps = [paper[metric] - exact[metric] for paper, exact in pairs if metric in paper and metric in exact]
    if not gaps:
        return NOTHING
    form = f"+{METRICS[metric][1]}"
    return f"{statistics.fmean(gaps):{form}} ({min(gaps):{form}} to {max(gaps):{form}})"


# ---- the weights that had the lowest error on the test set ----------------------------------------------------------------


def best_looks(grouped: Grouped, printed: dict[str, Any]) -> list[str]:
    """From the looks along the way: the best of them against the last."""
    rows = []
    for data, named in grouped.items():
        repeated = [name for others in RETRAINED.values() for name in others.values()]
        runs = dict.fromkeys([*(each.run for each in beside_print(data, named, printed)), *repeated])
        for run in runs:
            for label, results in variants(named, Row(run, run)):
                looked = [result for result in results if gain(result) is not None]
                if looked:
                    rows.append([f"{data}, {label}", *_look_cells(looked)])
    if not rows:
        return ["No run has its looks at the test set beside it yet."]
    headings = ["run", "seeds", "looks", "images", "PSNR, last look", "PSNR, best look", "of epoch", "gain"]
    return table(headings, rows)


def _look_cells(results: list[Result]) -> list[str]:
    bests = [best_look(result) for result in results]
    last = statistics.fmean(result.looks[-1]["psnr"] for result in results)
    images = {str(result.document["config"].get("training", {}).get("evaluation_images")) for result in results}
    return [
        str(len(results)),
        " or ".join(sorted({str(len(result.looks)) for result in results})),
        " or ".join(sorted(images)),
        number("psnr", last),
        number("psnr", statistics.fmean(look["psnr"] for look in bests)),
        ", ".join(f"{look['epoch']:.0f}" for look in bests),
        f"{statistics.fmean(look['psnr'] for look in bests) - last:+.3f}",
    ]


def best_look(result: Result) -> dict[str, Any]:
    """By the squared error, as the released code chooses; early files have the PSNR alone."""
    finite = [look for look in result.looks if math.isfinite(look["psnr"])]
    return min(finite, key=lambda look: (look.get("mse", 0.0), -look["psnr"]))


def gain(result: Result) -> float | None:
    """PSNR that choosing on the test images gains; None where the looks were not at them, or the last saw no number."""
    if not result.looks or result.document["config"].get("data", {}).get("holdout"):
        return None
    if not math.isfinite(result.looks[-1]["psnr"]):
        return None
    return float(best_look(result)["psnr"] - result.looks[-1]["psnr"])


def mean_gain(results: list[Result]) -> float | None:
    gains = [found for result in results if (found := gain(result)) is not None]
    return statistics.fmean(gains) if gains else None


# ---- causes: what each would change ---------------------------------------------------------------------------------------

# Trainings as print may have been made: the system that one stands for → its run.
RETRAINED = {
    "weight × 4": {system: heavier.name for system, heavier in HEAVIER.items()},
    "released code": {"arcvq-vae": "released-code"},
}
CAUSES = ("best look", *RETRAINED, "tuned rate")


def causes(grouped: Grouped, printed: dict[str, Any]) -> list[str]:
    """PSNR of Table 1: how far ours is from print, and by how much each thing that may lie behind it moves ours."""
    rows, lines = [], []
    shown: list[Result] = []
    for data, named in grouped.items():
        measured = alike(named, TABLE_1.runs())
        for run in TABLE_1.runs():
            results = measured.get(run, [])
            target = printed.get(data, {}).get(run, {}).get("psnr")
            ours = cell(results, "paper", "psnr")
            if target is None or ours is None:
                continue
            shown += results
            moved = {cause: moves(data, named, run, results, cause) for cause in CAUSES}
            spread = number("psnr", ours.spread) if ours.spread is not None else "one seed"
            cells = [NOTHING if moved[c] is None else _signed(moved[c]) for c in CAUSES]
            jpeg = _signed(_protocol_gap(results))
            rows.append(
                [f"{data}, {run}{revision_mark(results, 'paper')}", f"{ours.mean - target:+.2f}", spread, jpeg, *cells]
            )
            lines.append(f"- {data}, {run}: {verdict(ours.mean - target, ours.spread or 0.0, moved)}")
    if not rows:
        return ["Nothing of Table 1 is measured under `paper` yet."]
    headings = ["PSNR", "ours − print", "spread", "paper − exact", *CAUSES]
    return [*table(headings, rows), *precision_note(shown), "", *lines]


def moves(data: str, named: dict[str, list[Result]], run: str, results: list[Result], cause: str) -> float | str | None:
    """What the cause changes in ours, "not measured", or None where it does not apply. `results` are ours."""
    if cause == "best look":
        found = mean_gain(results)
        return ABSENT if found is None else found
    if cause in RETRAINED:
        return _step(named, run, RETRAINED[cause][run]) if run in RETRAINED[cause] else None
    if data != DATA:
        return None  # tuned there alone
    tuned = (budget_name(each.name, BUDGETS[-1]) for each in contenders(choose(named)) if each.system == run)
    steps = [_step(named, run, name) for name in tuned]
    return max((step for step in steps if isinstance(step, float)), default=ABSENT)


def _step(named: dict[str, list[Result]], run: str, other: str) -> float | str:
    """Between runs of one precision."""
    both = alike(named, (run, other))
    before, after = (cell(both.get(name, []), "paper", "psnr") for name in (run, other))
    return after.mean - before.mean if before and after else ABSENT


def _protocol_gap(results: list[Result]) -> float | str:
    """Of the same weights: a seed that lacks one of the two says nothing."""
    both = [result for result in results if result.metrics("paper") and result.metrics("exact")]
    paper, exact = (cell(both, protocol, "psnr") for protocol in ("paper", "exact"))
    return paper.mean - exact.mean if paper and exact else ABSENT


def _signed(value: float | str | None) -> str:
    return value if isinstance(value, str) else f"{value:+.2f}"


def verdict(gap: float, spread: float, moved: dict[str, float | str | None]) -> str:
    """In words: what brings ours nearer to print, what does not, what moves it by no more than seeds differ, what is not known."""
    every = {cause: value for cause, value in moved.items() if isinstance(value, float)}
    known = {cause: value for cause, value in every.items() if abs(value) > spread}
    little = [cause for cause in every if cause not in known]
    nearer = [cause for cause, value in known.items() if abs(gap + value) < abs(gap)]
    further = [cause for cause in known if cause not in nearer]
    unknown = [cause for cause, value in moved.items() if value == ABSENT]
    parts = [f"{abs(gap):.2f} dB {'above' if gap > 0 else 'below'} print" if round(gap, 2) else "level with print"]
    closer = [f"{cause} ({known[cause]:+.2f}, which leaves {gap + known[cause]:+.2f})" for cause in nearer]
    parts += [f"nearer to print with {', '.join(closer)}"] if closer else []
    parts += [f"not nearer with {', '.join(f'{c} ({known[c]:+.2f})' for c in further)}"] if further else []
    parts += [f"within the spread: {', '.join(f'{c} ({every[c]:+.2f})' for c in little)}"] if little else []
    parts += [f"not measured: {', '.join(unknown)}"] if unknown else []
    return "; ".join(parts) + "."


def retrained(grouped: Grouped, printed: dict[str, Any]) -> list[str]:
    """Ours minus print in every metric, trained as it is and as print may have been, in one precision."""
    rows: list[list[str]] = []
    shown: list[Result] = []
    for data, named in grouped.items():
        for run in dict.fromkeys(run for others in RETRAINED.values() for run in others):
            others = {f"{run}, {how}": names[run] for how, names in RETRAINED.items() if run in names}
            measured, numbers = alike(named, (run, *others.values())), printed.get(data, {}).get(run, {})
            if not any(name in measured for name in others.values()):
                continue
            for label, name in {run: run, **others}.items():
                results = [result for result in measured.get(name, []) if result.metrics("paper") is not None]
                if results:
                    shown += results
                    label = f"{data}, {label}{revision_mark(results, 'paper')}"
                    gaps = [_gap(results, metric, numbers) for metric in METRICS_IN_PRINT]
                    gained = mean_gain(results)
                    rows.append([label, str(len(results)), *gaps, NOTHING if gained is None else _signed(gained)])
    headings = ["ours − print", "seeds", *(METRICS[metric][0] for metric in METRICS_IN_PRINT), "PSNR, best look − last"]
    return [*table(headings, rows), *precision_note(shown)] if rows else ["No such training is measured yet."]


def _gap(results: list[Result], metric: str, numbers: dict[str, float]) -> str:
    found = cell(results, "paper", metric)
    if found is None or metric not in numbers:
        return NOTHING
    return f"{found.mean - numbers[metric]:+{METRICS[metric][1]}}"
