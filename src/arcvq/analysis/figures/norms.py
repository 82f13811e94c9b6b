"""Histograms of the norms of the codes, early and late in training."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from arcvq.analysis.figures.style import (
    TEXT_COLOUR,
    UNUSED_COLOUR,
    add_legend,
    grid_of_axes,
    new_figure,
    run_colour,
    show_message,
    style_axes,
)
from arcvq.analysis.figures.training import format_log_axis
from arcvq.analysis.history import RunHistory
from arcvq.analysis.snapshot import FloatArray, Snapshot

BINS = 60
# A larger radius, relative to the largest norm, lies beyond the axis: it would squeeze all codes into one bin.
MAX_RADIUS_RATIO = 3.0
# Norms that span more than this ratio get a log axis.
LOG_AXIS_RATIO = 30.0


def norm_histograms(runs: Sequence[RunHistory]) -> Figure:
    """One row per run: an early snapshot on the left, the last on the right; used and unused codes apart."""
    figure = new_figure(2.7 * len(runs) + 0.3)
    rows = grid_of_axes(figure, len(runs), 2, sharex=True, sharey=True)
    edges, logarithmic = _common_bins(runs)
    for position, (run, row) in enumerate(zip(runs, rows)):
        for axes, snapshot in zip(row, (run.early_snapshot, run.last_snapshot)):
            _draw_histogram(axes, snapshot, edges, run_colour(position))
            _draw_radius(axes, run.ball_radius_at(snapshot.step), edges[-1])
            style_axes(axes, title=f"{run.name}, step {snapshot.step:,}")
            if logarithmic:
                axes.set_xscale("log")
            axes.set_yscale("log")
            add_legend(axes, loc="best")
        row[0].set_ylabel("codes", fontsize=11, color=TEXT_COLOUR)
    # A log scale that starts below one code: a few used codes stay visible beside hundreds of unused ones.
    bottom, top = rows[0][0].set_ylim(bottom=0.7)
    format_log_axis(rows[0][0].yaxis, max(top / bottom, 3.0))  # codes are counted in whole numbers
    if logarithmic:
        format_log_axis(rows[0][0].xaxis, edges[-1] / edges[0])
    for axes in rows[-1]:
        axes.set_xlabel("ℓ2 norm of the code" + (" (log scale)" if logarithmic else ""), fontsize=11, color=TEXT_COLOUR)
    return figure


def _draw_histogram(axes: Axes, snapshot: Snapshot, edges: FloatArray, colour: str) -> None:
    """Draw the histograms of used and unused codes into a panel."""
    for mask, label, fill in (
        (~snapshot.used, "unused", UNUSED_COLOUR),
        (snapshot.used, "used", colour),
    ):
        norms = snapshot.norms[mask & snapshot.finite]
        if len(norms):
            clipped = np.clip(norms, edges[0], edges[-1])  # a norm of zero goes into the first bin
            codes, _ = np.histogram(clipped, edges)
            axes.stairs(codes, edges, fill=True, color=fill, alpha=0.62, label=f"{len(norms):,} {label}", zorder=2)
            axes.stairs(codes, edges, color=fill, linewidth=1.3, zorder=3)
    if not snapshot.finite.any():
        show_message(axes, "no code is finite")


def _draw_radius(axes: Axes, radius: float | None, edge: float) -> None:
    """Draw the ball radius as a dashed line; beyond `edge` only name it in the legend."""
    if radius is None:
        return
    style: dict[str, Any] = {"color": TEXT_COLOUR, "linestyle": (0, (4, 3)), "linewidth": 1.4}
    if radius > edge:
        axes.plot([], [], label=f"ball radius {radius:.3g}, beyond the axis", **style)
    else:
        axes.axvline(radius, label=f"ball radius {radius:.3g}", zorder=4, **style)


def _common_bins(runs: Sequence[RunHistory]) -> tuple[FloatArray, bool]:
    """The bin edges that all panels share, and whether they are logarithmic."""
    shown = [snapshot for run in runs for snapshot in (run.early_snapshot, run.last_snapshot)]
    norms = np.concatenate([snapshot.norms[snapshot.finite] for snapshot in shown])
    radii = [run.ball_radius_at(snapshot.step) for run in runs for snapshot in (run.early_snapshot, run.last_snapshot)]
    shown_radii = [
        radius for radius in radii if radius is not None and radius <= MAX_RADIUS_RATIO * norms.max(initial=0.0)
    ]
    values = np.concatenate([norms, shown_radii])
    positive = values[values > 0]
    if len(positive) == 0:
        return np.linspace(0.0, 1.0, BINS + 1), False
    low, high = np.quantile(positive, [0.01, 0.99])
    if high > LOG_AXIS_RATIO * low:  # on a linear axis most codes would fall into one bin
        return np.geomspace(positive.min() * 0.98, positive.max() * 1.02, BINS + 1), True
    return np.linspace(0.0, positive.max() * 1.02, BINS + 1), False
