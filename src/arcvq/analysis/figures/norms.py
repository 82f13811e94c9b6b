"""Where the lengths of the codes lie, early and late: the imbalance that starves unused codes shows here first."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from arcvq.analysis.figures.style import (
    TEXT_COLOUR,
    UNUSED_COLOUR,
    dress,
    grid_of_axes,
    legend,
    new_figure,
    run_colour,
    say,
)
from arcvq.analysis.history import RunHistory
from arcvq.analysis.snapshot import FloatArray, Snapshot

BINS = 60
# A ball so many times as wide as the longest code is long since gone: it would only squeeze the codes into one bin.
FAR = 3.0
WIDE = 30.0


def norm_histograms(runs: Sequence[RunHistory]) -> Figure:
    """One row per run; an early snapshot on the left, the last on the right; used and unused codes apart."""
    figure = new_figure(2.7 * len(runs) + 0.3)
    rows = grid_of_axes(figure, len(runs), 2, sharex=True, sharey=True)
    edges, logarithmic = _common_edges(runs)
    for position, (run, row) in enumerate(zip(runs, rows)):
        for axes, snapshot in zip(row, (run.early_snapshot, run.last_snapshot)):
            _draw(axes, snapshot, edges, run_colour(position))
            _mark_radius(axes, run.ball_radius_at(snapshot.step), edges[-1])
            dress(axes, title=f"{run.name}, step {snapshot.step:,}")
            if logarithmic:
                axes.set_xscale("log")
            # Counts on a log scale, from just below one code: a few used codes stay visible beside hundreds unused.
            axes.set_yscale("log")
            axes.set_ylim(bottom=0.7)
            legend(axes, loc="best")
        row[0].set_ylabel("codes", fontsize=11, color=TEXT_COLOUR)
    for axes in rows[-1]:
        axes.set_xlabel("ℓ2 norm of the code" + (" (log scale)" if logarithmic else ""), fontsize=11, color=TEXT_COLOUR)
    return figure


def _draw(axes: Axes, snapshot: Snapshot, edges: FloatArray, colour: str) -> None:
    for mask, label, fill in (
        (~snapshot.used, "unused", UNUSED_COLOUR),
        (snapshot.used, "used", colour),
    ):
        norms = snapshot.norms[mask & snapshot.finite]
        if len(norms):
            clipped = np.clip(norms, edges[0], edges[-1])  # a norm of zero has no place on a log axis: the first bin
            codes, _ = np.histogram(clipped, edges)
            axes.stairs(codes, edges, fill=True, color=fill, alpha=0.62, label=f"{len(norms):,} {label}", zorder=2)
            axes.stairs(codes, edges, color=fill, linewidth=1.3, zorder=3)
    if not snapshot.finite.any():
        say(axes, "no code is finite")


def _mark_radius(axes: Axes, radius: float | None, edge: float) -> None:
    if radius is None:
        return
    style: dict[str, Any] = {"color": TEXT_COLOUR, "linestyle": (0, (4, 3)), "linewidth": 1.4}
    if radius > edge:
        axes.plot([], [], label=f"ball radius {radius:.3g}, beyond the axis", **style)
    else:
        axes.axvline(radius, label=f"ball radius {radius:.3g}", zorder=4, **style)


def _common_edges(runs: Sequence[RunHistory]) -> tuple[FloatArray, bool]:
    """One set of bins for all panels, so that lengths can be compared across them; whether the bins are logarithmic."""
    shown = [snapshot for run in runs for snapshot in (run.early_snapshot, run.last_snapshot)]
    norms = np.concatenate([snapshot.norms[snapshot.finite] for snapshot in shown])
    radii = [run.ball_radius_at(snapshot.step) for run in runs for snapshot in (run.early_snapshot, run.last_snapshot)]
    near = [radius for radius in radii if radius is not None and radius <= FAR * norms.max(initial=0.0)]
    values = np.concatenate([norms, near])
    positive = values[values > 0]
    if len(positive) == 0:
        return np.linspace(0.0, 1.0, BINS + 1), False
    low, high = np.quantile(positive, [0.01, 0.99])
    if high > WIDE * low:  # a linear axis would press most codes into one bar
        return np.geomspace(positive.min() * 0.98, positive.max() * 1.02, BINS + 1), True
    return np.linspace(0.0, positive.max() * 1.02, BINS + 1), False
