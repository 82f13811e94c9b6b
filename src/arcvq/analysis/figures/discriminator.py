"""The numbers of a discriminator against the training step."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from arcvq.analysis.figures.style import add_legend, grid_of_axes, new_figure, run_colour, show_message, style_axes
from arcvq.analysis.figures.training import draw_smoothed, format_log_axis, format_step_axis
from arcvq.analysis.history import RunHistory

# Number in the log → what the legend calls it, and its line; two in a panel are told apart by the line.
LOGITS = {"real_logits": ("images", "-"), "fake_logits": ("reconstructions", "--")}
LOSS = {"discriminator": ("", "-")}
WEIGHT = {"adversarial_weight": ("", "-")}
GRADIENTS = {"reconstruction_gradient": ("all other terms", "-"), "adversarial_gradient": ("adversarial", "--")}


def has_discriminator(run: RunHistory) -> bool:
    """Whether the run logged numbers of a discriminator."""
    return any(len(run.train_series(name)) for name in (*LOGITS, *LOSS))


def discriminator_health(runs: Sequence[RunHistory]) -> Figure:
    """Logits, the discriminator's loss, the weight of the adversarial term, and the two gradients that it compares."""
    figure = new_figure(6.6)
    (logits, loss), (weight, gradients) = grid_of_axes(figure, 2, 2)
    draw_numbers(logits, runs, LOGITS, title="Logits")
    draw_numbers(loss, runs, LOSS, title="Loss of the discriminator")
    draw_numbers(weight, runs, WEIGHT, title="Weight of the adversarial term", is_log=True)
    draw_numbers(gradients, runs, GRADIENTS, title="Gradients at the last layer", is_log=True)
    return figure


def draw_numbers(
    axes: Axes, runs: Sequence[RunHistory], names: dict[str, tuple[str, str]], *, title: str, is_log: bool = False
) -> None:
    """Draw these numbers of every run into a panel; a log axis leaves out what is not positive."""
    drawn = []
    for position, run in enumerate(runs):
        for name, (label, style) in names.items():
            series = run.train_series(name)
            kept = series.values > 0 if is_log else np.full(len(series), True)
            if kept.any():
                steps, values = series.steps[kept], series.values[kept]
                text = ", ".join(filter(None, [run.name if len(runs) > 1 else "", label])) or run.name
                draw_smoothed(axes, steps, values, color=run_colour(position), label=text, is_log=is_log, style=style)
                drawn.append(values)
    style_axes(axes, title=title, x="training step")
    format_step_axis(axes)
    if not drawn:
        show_message(axes, "nothing was logged")
        return
    add_legend(axes, loc="best")
    if is_log:
        axes.set_yscale("log")
        values = np.concatenate(drawn)
        format_log_axis(axes.yaxis, float(values.max() / values.min()))
