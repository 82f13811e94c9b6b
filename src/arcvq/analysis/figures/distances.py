"""Heat maps of the distances between codes."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from arcvq.analysis.figures.style import (
    LABEL_SIZE,
    TEXT_COLOUR,
    TICK_SIZE,
    hide_ticks,
    show_message,
    square_panels,
    style_axes,
)
from arcvq.analysis.history import RunHistory
from arcvq.analysis.snapshot import FloatArray, IntArray, evenly_spaced

# With more codes than this the matrix has more cells than the page has pixels.
DISTANCE_LIMIT = 1024

# The colour scale ends at this quantile of the distances, so that one outlier does not darken the rest.
COLOUR_QUANTILE = 0.995


def pairwise_distances(runs: Sequence[RunHistory]) -> Figure:
    """The ℓ2 distance of every pair of codes, most used codes first; one panel per run, one colour scale."""
    figure, panels = square_panels(len(runs))
    matrices = [distance_matrix(run) for run in runs]
    limits = [float(np.quantile(matrix, COLOUR_QUANTILE)) for matrix in matrices if matrix.size]
    limit = max([*limits, 1e-12])
    image = None
    for axes, run, matrix in zip(panels, runs, matrices):
        snapshot = run.last_snapshot
        style_axes(axes, title=run.name, x=_axis_label(len(matrix), snapshot.size), grid=False)
        if matrix.size == 0:
            hide_ticks(axes)
            show_message(axes, "no code is finite")
            continue
        image = axes.imshow(matrix, cmap="viridis", vmin=0.0, vmax=limit, interpolation="nearest")
        used = int((snapshot.counts[_shown_codes(run)] > 0).sum())
        axes.set_xticks([0, len(matrix) - 1], ["most used", "least used"])
        labels = axes.get_xticklabels()
        labels[0].set_horizontalalignment("left")
        labels[-1].set_horizontalalignment("right")
        axes.set_yticks([])
        if 0 < used < len(matrix):
            # Mark where the used codes end.
            for line in (axes.axhline, axes.axvline):
                line(used - 0.5, color="white", linewidth=1.0, linestyle=(0, (4, 3)))
    if image is not None:
        bar = figure.colorbar(image, ax=panels, shrink=0.82, pad=0.015, extend="max")
        bar.set_label("ℓ2 distance", fontsize=LABEL_SIZE, color=TEXT_COLOUR)
        bar.ax.tick_params(labelsize=TICK_SIZE, colors=TEXT_COLOUR)
        bar.outline.set_visible(False)
    return figure


def distance_matrix(run: RunHistory) -> FloatArray:
    """Distances between the codes of the last snapshot, most used first: (n, n), n at most DISTANCE_LIMIT."""
    codes = run.last_snapshot.codebook[_shown_codes(run)]
    squares = (codes**2).sum(axis=1)
    # ‖a‖² + ‖b‖² − 2ab in float64; rounding can give tiny negative values.
    squared = np.maximum(squares[:, None] + squares[None, :] - 2.0 * codes @ codes.T, 0.0)
    np.fill_diagonal(squared, 0.0)
    return np.asarray(np.sqrt(squared), dtype=np.float64)


def _shown_codes(run: RunHistory) -> IntArray:
    """Indices of the codes in the figure, most used first."""
    return evenly_spaced(run.last_snapshot.most_used_first(), DISTANCE_LIMIT)


def _axis_label(shown: int, size: int) -> str:
    """How many of the codes are shown, as text."""
    if shown == size:
        return f"all {size:,} codes, by use"
    return f"{shown:,} of {size:,} codes, by use"
