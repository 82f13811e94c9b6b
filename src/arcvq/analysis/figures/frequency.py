"""How often each code is used."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from arcvq.analysis.figures.style import (
    MUTED_COLOUR,
    add_legend,
    grid_of_axes,
    new_figure,
    run_colour,
    show_message,
    style_axes,
)
from arcvq.analysis.history import RunHistory


def code_frequency(runs: Sequence[RunHistory]) -> Figure:
    """Tokens per code of the last snapshot, most used first, on a log scale; a curve ends at the last used code."""
    figure = new_figure(3.9)
    axes = grid_of_axes(figure, 1, 1)[0][0]
    largest = max(run.last_snapshot.size for run in runs)
    for position, run in enumerate(runs):
        snapshot = run.last_snapshot
        counts = np.sort(snapshot.counts[snapshot.used])[::-1]
        ranks = np.arange(1, len(counts) + 1)
        colour = run_colour(position)
        label = f"{run.name}: {len(counts):,} of {snapshot.size:,} codes used"
        axes.plot(ranks, counts, color=colour, linewidth=2.4, label=label, zorder=3)
        if len(counts):
            # A log axis has no zero: draw the drop after the last used code down to 0.5.
            axes.plot([ranks[-1]] * 2, [counts[-1], 0.5], color=colour, linewidth=1.2, linestyle=(0, (2, 2)), zorder=3)
            axes.plot(ranks[-1:], counts[-1:], "o", color=colour, markersize=6, zorder=4)
    even_counts = [run.last_snapshot.token_count / run.last_snapshot.size for run in runs]
    if max(even_counts) > 0:
        if max(even_counts) < 1.05 * min(even_counts):  # one line only where it is the same for all
            label = f"perfectly even use: {even_counts[0]:,.0f} each"
            axes.axhline(
                even_counts[0], color=MUTED_COLOUR, linewidth=1.2, linestyle=(0, (5, 4)), label=label, zorder=2
            )
        axes.set_yscale("log")
        axes.set_ylim(bottom=0.5)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:,.0f}" if count >= 1 else ""))
        add_legend(axes, loc="best")
    else:
        show_message(axes, "no tokens were counted")
    axes.set_xlim(0, largest * 1.01)
    style_axes(axes, title="Tokens per code (log scale)", x="rank of the code, most used first", y="tokens")
    return figure
