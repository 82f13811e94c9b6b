"""What changed while the runs trained: code use, quality, losses."""

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from arcvq.analysis.figures.style import bare, dress, grid_of_axes, legend, new_figure, run_colour, say
from arcvq.analysis.history import RunHistory, Series
from arcvq.analysis.snapshot import FloatArray

# The logged keys that are losses, in the order of the panels; other keys of a training line are not drawn as such.
LOSS_TERMS = {
    "loss": "total",
    "reconstruction": "reconstruction",
    "codebook": "codebook",
    "commitment": "commitment",
    "arc": "ArcLoss",
}

# A curve is smoothed over this share of its points.
SMOOTHING_SHARE = 0.05


def usage_over_time(runs: Sequence[RunHistory]) -> Figure:
    """Share of codes in use, and perplexity, against the step."""
    figure = new_figure(3.9)
    usage_axes, perplexity_axes = grid_of_axes(figure, 1, 2)[0]
    _draw(usage_axes, runs, lambda run: run.evaluation_series("usage"), scale=100.0)
    _draw(perplexity_axes, runs, lambda run: run.evaluation_series("perplexity"))
    dress(usage_axes, title="Codes in use (% of the codebook)", x="training step")
    dress(perplexity_axes, title="Perplexity (effective number of codes)", x="training step")
    usage_axes.set_ylim(0, 104)
    perplexity_axes.set_ylim(bottom=0)
    legend(usage_axes, loc="best")
    return figure


def quality_over_time(runs: Sequence[RunHistory]) -> Figure:
    """PSNR and mean absolute error on the evaluation set against the step."""
    figure = new_figure(3.6)
    psnr_axes, error_axes = grid_of_axes(figure, 1, 2)[0]
    _draw(psnr_axes, runs, lambda run: run.evaluation_series("psnr"))
    _draw(error_axes, runs, lambda run: run.evaluation_series("l1"))
    dress(psnr_axes, title="PSNR (dB, higher is better)", x="training step")
    dress(error_axes, title="ℓ1 error (lower is better)", x="training step")
    legend(psnr_axes, loc="best")
    return figure


def loss_curves(runs: Sequence[RunHistory]) -> Figure:
    """Each loss term on a log scale: the smoothed curve, with the logged values faint behind it."""
    terms = [term for term in LOSS_TERMS if any(len(run.train_series(term)) for run in runs)]
    columns = 3
    rows = max(-(-len(terms) // columns), 1)
    figure = new_figure(2.75 * rows)
    cells = [axes for row in grid_of_axes(figure, rows, columns) for axes in row]
    for axes, term in zip(cells, terms):
        _draw_loss(axes, runs, term)
    for axes in cells[len(terms) :]:
        axes.set_axis_off()
    if terms:
        legend(cells[0], loc="best")
    else:
        say(cells[0], "no training losses were logged")
    return figure


def smooth(values: FloatArray, window: int) -> FloatArray:
    """A centred running mean over an odd window; near the ends, over the part of the window that exists."""
    if window <= 1:
        return values
    kernel = np.ones(window)
    return np.convolve(values, kernel, "same") / np.convolve(np.ones_like(values), kernel, "same")


def _draw(
    axes: Axes, runs: Sequence[RunHistory], series_of: Callable[[RunHistory], Series], scale: float = 1.0
) -> None:
    for position, run in enumerate(runs):
        series = series_of(run)
        if len(series) == 0:
            continue
        # The marker shape tells runs apart where colour cannot: in print, and on top of each other.
        marker = "osD^vP"[position % 6]
        axes.plot(
            series.steps, scale * series.values, color=run_colour(position), marker=marker, markersize=4.5, linewidth=2.2,
            label=run.name, clip_on=False, zorder=3,
        )  # fmt: skip
    if not axes.lines:
        say(axes, "nothing was logged")
    _plain_steps(axes)


def _draw_loss(axes: Axes, runs: Sequence[RunHistory], term: str) -> None:
    drawn = []
    for position, run in enumerate(runs):
        series = run.train_series(term)
        positive = series.values > 0  # a log scale has no place for the rest
        steps, values = series.steps[positive], series.values[positive]
        colour = run_colour(position)
        axes.plot(steps, values, color=colour, linewidth=0.8, alpha=0.3)
        # The mean of logarithms, because that is what the eye averages on this axis.
        window = 2 * round(SMOOTHING_SHARE * len(values) / 2) + 1
        axes.plot(steps, np.exp(smooth(np.log(values), window)), color=colour, linewidth=2.0, label=run.name)
        drawn.append(values)
    dress(axes, title=LOSS_TERMS[term], x="training step")
    _plain_steps(axes)
    everything = np.concatenate(drawn)
    if len(everything) == 0:
        bare(axes)
        say(axes, "no positive value to draw")
        return
    axes.set_yscale("log")
    _plain_log_ticks(axes, float(everything.max() / everything.min()))


def _plain_steps(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))


def _plain_log_ticks(axes: Axes, ratio: float) -> None:
    """A handful of ticks written as plain numbers, however many or few decades the curve spans."""
    if ratio < 3:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    else:
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if ratio < 100 else (1.0,), numticks=9))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
