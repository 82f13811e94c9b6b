"""Code usage, quality and losses against the training step."""

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from arcvq.analysis.figures.style import (
    add_legend,
    grid_of_axes,
    hide_ticks,
    new_figure,
    run_colour,
    show_message,
    style_axes,
)
from arcvq.analysis.history import RunHistory, Series
from arcvq.analysis.snapshot import FloatArray, IntArray
from arcvq.metrics import metric_label

# The logged loss terms and their titles, in the order of the panels.
LOSS_TERMS = {
    "loss": "total",
    "tokenizer_loss": "total of the tokenizer",
    "reconstruction": "reconstruction",
    "l1": "ℓ1",
    "l2": "ℓ2",
    "perceptual": "LPIPS",
    "laplace": "logit-Laplace",
    "codebook": "codebook",
    "commitment": "commitment",
    "arc": "ArcLoss",
    "adversarial": "adversarial",
    "discriminator": "discriminator",
    "lecam": "LeCam",
    "r1": "R1",
}

# A curve is smoothed over this share of its points.
SMOOTHING_SHARE = 0.05


def usage_over_time(runs: Sequence[RunHistory]) -> Figure:
    """Share of used codes, and perplexity, against the step."""
    figure = new_figure(3.9)
    usage_axes, perplexity_axes = grid_of_axes(figure, 1, 2)[0]
    _draw_series(usage_axes, runs, lambda run: run.evaluation_series("usage"), scale=100.0)
    _draw_series(perplexity_axes, runs, lambda run: run.evaluation_series("perplexity"))
    style_axes(usage_axes, title="Codes in use (% of the codebook)", x="training step")
    style_axes(perplexity_axes, title="Perplexity (effective number of codes)", x="training step")
    usage_axes.set_ylim(0, 104)
    perplexity_axes.set_ylim(bottom=0)
    add_legend(usage_axes, loc="best")
    return figure


def quality_over_time(runs: Sequence[RunHistory]) -> Figure:
    """PSNR and mean absolute error on the evaluation set against the step."""
    figure = new_figure(3.6)
    psnr_axes, error_axes = grid_of_axes(figure, 1, 2)[0]
    _draw_series(psnr_axes, runs, lambda run: run.evaluation_series("psnr"))
    _draw_series(error_axes, runs, lambda run: run.evaluation_series("l1"))
    style_axes(psnr_axes, title="PSNR (dB, higher is better)", x="training step")
    style_axes(error_axes, title="ℓ1 error (lower is better)", x="training step")
    add_legend(psnr_axes, loc="best")
    return figure


def loss_curves(runs: Sequence[RunHistory]) -> Figure:
    """Each loss term, on a log scale if it is never negative: the smoothed curve, with the logged values faint behind it."""
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
        add_legend(cells[0], loc="best")
    else:
        show_message(cells[0], "no training losses were logged")
    return figure


def prior_training(runs: Sequence[RunHistory], metric: str) -> Figure:
    """The loss of priors in training, and their own metric on the evaluation images, against the step."""
    figure = new_figure(3.6)
    loss_axes, metric_axes = grid_of_axes(figure, 1, 2)[0]
    _draw_loss(loss_axes, runs, "loss")
    style_axes(loss_axes, title="Loss on training images", x="training step")
    _draw_series(metric_axes, runs, lambda run: run.evaluation_series(metric))
    style_axes(metric_axes, title=f"Evaluation images: {metric_label(metric).label}", x="training step")
    add_legend(metric_axes, loc="best")
    return figure


def smooth(values: FloatArray, window: int) -> FloatArray:
    """A centred running mean over an odd window; near the ends, over the part of the window that exists."""
    if window <= 1:
        return values
    kernel = np.ones(window)
    return np.convolve(values, kernel, "same") / np.convolve(np.ones_like(values), kernel, "same")


def _draw_series(
    axes: Axes, runs: Sequence[RunHistory], series_of: Callable[[RunHistory], Series], scale: float = 1.0
) -> None:
    """Draw one series per run into a panel, scaled by `scale`."""
    for position, run in enumerate(runs):
        series = series_of(run)
        if len(series) == 0:
            continue
        # Marker shapes tell runs apart without colour.
        marker = "osD^vP"[position % 6]
        axes.plot(
            series.steps, scale * series.values, color=run_colour(position), marker=marker, markersize=4.5, linewidth=2.2,
            label=run.name, clip_on=False, zorder=3,
        )  # fmt: skip
    if not axes.lines:
        show_message(axes, "nothing was logged")
    format_step_axis(axes)


def _draw_loss(axes: Axes, runs: Sequence[RunHistory], term: str) -> None:
    """Draw a loss term of every run into a panel: logged values faint, their running mean strong."""
    found = [run.train_series(term) for run in runs]
    is_log = all((series.values >= 0).all() for series in found)
    drawn_values = []
    for position, (run, series) in enumerate(zip(runs, found)):
        steps, values = series.steps, series.values
        if is_log:  # which cannot show a 0
            steps, values = steps[values > 0], values[values > 0]
        draw_smoothed(axes, steps, values, color=run_colour(position), label=run.name, is_log=is_log)
        drawn_values.append(values)
    style_axes(axes, title=LOSS_TERMS[term], x="training step")
    format_step_axis(axes)
    all_values = np.concatenate(drawn_values)
    if len(all_values) == 0:
        hide_ticks(axes)
        show_message(axes, "no positive value to draw")
    elif is_log:
        axes.set_yscale("log")
        format_log_axis(axes.yaxis, float(all_values.max() / all_values.min()))


def draw_smoothed(
    axes: Axes, steps: IntArray, values: FloatArray, *, color: str, label: str, is_log: bool = False, style: str = "-"
) -> None:
    """Draw values faint and their running mean strong; on a log axis that of their logarithms, to match it."""
    axes.plot(steps, values, color=color, linewidth=0.8, alpha=0.3)
    window = 2 * round(SMOOTHING_SHARE * len(values) / 2) + 1
    mean = np.exp(smooth(np.log(values), window)) if is_log else smooth(values, window)
    axes.plot(steps, mean, color=color, linewidth=2.0, linestyle=style, label=label)


def format_step_axis(axes: Axes) -> None:
    """Label the x axis with whole step numbers."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))


def format_log_axis(axis: Axis, ratio: float) -> None:
    """Label a logarithmic axis with a few plain numbers; `ratio` is largest over smallest value."""
    if ratio < 3:
        axis.set_major_locator(MaxNLocator(nbins=5))
    else:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if ratio < 100 else (1.0,), numticks=9))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
