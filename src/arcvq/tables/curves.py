"""Quality against training time: PSNR and usage over epochs and over seconds, drawn from results, their looks and step times."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from arcvq.tables.chosen import after, choose, lengths, presets
from arcvq.tables.experiments import Experiment
from arcvq.tables.results import Result
from arcvq.tables.step_times import StepTimes
from arcvq.tables.studies import (
    BUDGETS,
    CONTENDERS,
    DATA,
    RECIPE_PRESET,
    RECIPES,
    SIDES,
    WITHOUT_SAMP,
    Contender,
    contenders,
    preset_name,
    recipe_contenders,
    side_of,
)

# Enough for every contender, the recipe before its final and after, and its control, and to be told apart.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C564B", "#7F7F7F", "#BCBD22", "#9467BD", "#17BECF", "#000000",
    "#999933", "#AA4499",
)  # fmt: skip
FIRST_EPOCH = 5  # before it nothing has happened
UPPER_END = 1.5  # dB below the best, where the tuned ones are close together


@dataclass(frozen=True)
class Curve:
    """`points` are (epochs, PSNR, usage); `whole` where each is what a training of that length gives."""

    name: str
    system: str
    points: list[tuple[float, float, float]]
    whole: bool
    epoch_seconds: float | None


def curves(named: Mapping[str, list[Result]], times: StepTimes | None = None) -> Iterator[Curve]:
    """Of every system its preset's run, look by look, then the best that tuning made of it, length by length; last the recipe so,
    what was chosen before its final, and what it is without SAMP."""
    chosen, measured = choose(named), lengths(named)
    compared, as_they_are = contenders(chosen), presets(named)
    for system in dict.fromkeys([*CONTENDERS, *(each.system for each in recipe_contenders(chosen))]):
        tuned = [each for each in compared if each.system == system]
        ran = (r for each in tuned for run in each.experiments() for r in measured.get(run.name, []))
        own = [result for result in ran if not result.diverged]
        preset = RECIPE_PRESET if system == chosen.get("recipe") else system
        looked = [result for result in as_they_are.get(preset, []) if result.looks and not result.diverged]
        if looked:
            points = [
                (look["epoch"], look["psnr"], look.get("usage") or 0.0)
                for look in looked[0].looks
                if look["epoch"] >= FIRST_EPOCH
            ]
            yield Curve(preset_name(preset), system, points, False, epoch_seconds(preset, looked, times))
        points = [point for epochs in BUDGETS for point in _better(measured, tuned, epochs)]
        if points:
            role = side_of(system, chosen)
            name = f"{system}, tuned" if role == "rival" else f"{system} ({SIDES[role]})"
            yield Curve(name, system, points, True, epoch_seconds(_timed(tuned[0].run, chosen), own, times))


def _timed(run: Experiment, chosen: Mapping[str, Any]) -> str:
    """The preset whose steps take as long: the recipe's of what, like it, puts SAMP on the same quantizer."""
    recipe = RECIPES.get(chosen.get("recipe", ""))
    with_samp = run.name in RECIPES and run.name not in WITHOUT_SAMP
    return RECIPE_PRESET if recipe and with_samp and run.preset == recipe.preset else run.preset


def _better(
    measured: Mapping[str, list[Result]], tuned: list[Contender], epochs: int
) -> list[tuple[float, float, float]]:
    """The point of whichever row has the highest PSNR at this length, of the recipe's of those with the most seeds; none if none is
    measured."""
    found = [(each, *after(measured, each, epochs)) for each in tuned]
    points = [
        (psnr.seeds if each.system not in CONTENDERS else 0, (float(epochs), psnr.mean, usage.mean))
        for each, psnr, usage in found
        if psnr and usage
    ]
    return [point for _, point in sorted(points)[-1:]]


def epoch_seconds(preset: str, results: list[Result], times: StepTimes | None) -> float | None:
    """What an epoch of such runs takes alone: most were trained beside others, and their own seconds tell little."""
    for result in results:
        if times is not None and result.epochs:
            steps = result.document["training"]["steps"] / result.epochs
            return times.seconds(f"{DATA}/{preset}", result.precision, steps)
    return None


def budget_curves(named: Mapping[str, list[Result]], before: str | None, times: StepTimes | None = None) -> str:
    """The figure as SVG. It carries a digest of what it shows: `before` is given back while that is the same, so that another
    version of the drawing library does not make it new."""
    found = list(curves(named, times))
    content = json.dumps([asdict(curve) for curve in found], sort_keys=True)
    mark = f"<!-- shows {hashlib.sha256(content.encode()).hexdigest()[:16]} -->"
    if before is not None and mark in before:
        return before
    return f"{draw(found, times.device if times else '')}{mark}\n"


def draw(found: list[Curve], device: str) -> str:
    """Over epochs and, where steps were timed, over seconds: PSNR, its upper end once more, and usage."""
    timed = any(curve.epoch_seconds is not None for curve in found)
    figure = Figure(figsize=(11, 11), layout="constrained", facecolor="white")
    axes: Any = figure.subplots(3, 1 + timed, sharey="row", squeeze=False)
    quantities = (("PSNR, exact", 1), (f"the upper {UPPER_END} dB of it", 1), ("share of codes in use", 2))
    systems = list(dict.fromkeys(curve.system for curve in found))
    for curve in found:
        colour = COLOURS[systems.index(curve.system) % len(COLOURS)]
        style: dict[str, Any] = {"color": colour, "linewidth": 1.0, "linestyle": ":"}
        if curve.whole:
            style |= {
                "linestyle": "--" if curve.system in WITHOUT_SAMP else "-",
                "linewidth": 2.4 if curve.system in RECIPES else 1.4,
                "marker": "o",
                "markersize": 4,
            }
        for column, scale in enumerate((1.0, curve.epoch_seconds)):
            if scale is not None:
                times = [point[0] * scale for point in curve.points]
                for row, (_, which) in enumerate(quantities):
                    axes[row][column].plot(times, [point[which] for point in curve.points], label=curve.name, **style)
    labels = ("epochs", f"seconds of training on {device}, alone")[: 1 + timed]
    for row, (quantity, _) in enumerate(quantities):
        for column, label in enumerate(labels):
            axes[row][column].set(xscale="log", xlabel=label, ylabel=quantity)
            axes[row][column].grid(alpha=0.3, linewidth=0.5)
        axes[row][0].set_xticks(BUDGETS, [str(epochs) for epochs in BUDGETS])
    lengths_apart = [point[1] for curve in found if curve.whole for point in curve.points]
    if lengths_apart:  # looks at a training that has hardly begun would take up most of the room
        axes[0][0].set_ylim(bottom=min(lengths_apart) - 0.5)
        axes[1][0].set_ylim(max(lengths_apart) - UPPER_END, max(lengths_apart) + 0.1)
    axes[2][0].set_ylim(0, 1.03)
    if found:
        figure.legend(
            *axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8, frameon=False
        )
    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "arcvq"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()
