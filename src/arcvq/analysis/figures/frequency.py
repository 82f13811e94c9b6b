"""How unevenly the codes are used."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from arcvq.analysis.figures.style import MUTED_COLOUR, dress, grid_of_axes, legend, new_figure, run_colour, say
from arcvq.analysis.history import RunHistory


def code_frequency(runs: Sequence[RunHistory]) -> Figure:
    """Tokens per code of the last snapshot, sorted, on a log scale; a curve ends where its codes fall silent."""
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
            # The drop to zero is the point of the figure, and a log axis has no zero: draw the edge down to it.
            axes.plot([ranks[-1]] * 2, [counts[-1], 0.5], color=colour, linewidth=1.2, linestyle=(0, (2, 2)), zorder=3)
            axes.plot(ranks[-1:], counts[-1:], "o", color=colour, markersize=6, zorder=4)
    evens = [run.last_snapshot.token_count / run.last_snapshot.size for run in runs]
    if max(evens) > 0:
        if max(evens) < 1.05 * min(evens):  # one line only where it is the same for all
            label = f"perfectly even use: {evens[0]:,.0f} each"
            axes.axhline(evens[0], color=MUTED_COLOUR, linewidth=1.2, linestyle=(0, (5, 4)), label=label, zorder=2)
        axes.set_yscale("log")
        axes.set_ylim(bottom=0.5)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:,.0f}" if count >= 1 else ""))
        legend(axes, loc="best")
    else:
        say(axes, "no tokens were counted")
    axes.set_xlim(0, largest * 1.01)
    dress(axes, title="Tokens per code (log scale)", x="rank of the code, most used first", y="tokens")
    return figure
