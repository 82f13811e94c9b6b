"""Colours, sizes and helpers that all figures share. Styles are set on each artist, never in matplotlib's global settings."""

from io import BytesIO
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Text

# Okabe and Ito's colour-blind-safe colours that are readable as lines on white. A run's position picks its colour.
RUN_COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
UNUSED_COLOUR = "#6B7280"
TEXT_COLOUR = "#1F2937"
MUTED_COLOUR = "#6B7280"
GRID_COLOUR = "#E5E7EB"

PAGE_WIDTH = 10.8  # inches; at 100 CSS pixels to the inch, the width of the report's column
PHONE_WIDTH = 4.6  # on a screen of 420 pixels a tick's label is then 11 high
PHONE_HEIGHT = 4.2  # the most for a panel: a square map then has no blank band above and below
PHONE_CHARACTERS = 38  # longer texts are wrapped, so that they end within the figure
TITLE_SIZE = 12.5
LABEL_SIZE = 11
TICK_SIZE = 10


def run_colour(position: int) -> str:
    """The colour of the run at this position of the report."""
    return RUN_COLOURS[position % len(RUN_COLOURS)]


def new_figure(height: float, *, width: float = PAGE_WIDTH, padding: float = 0.1) -> Figure:
    """An empty figure; `padding` is in inches, around each panel."""
    layout = ConstrainedLayoutEngine(w_pad=padding, h_pad=padding)
    figure = Figure(figsize=(width, height), layout=layout, facecolor="white")
    FigureCanvasAgg(figure)  # no window system, no pyplot registry
    return figure


def stack_panels(figure: Figure) -> Figure:
    """Put the figure's panels below one another, for a phone. Changes the figure in place."""
    panels = [axes for axes in figure.axes if axes.get_subplotspec() is not None]
    shown = [axes for axes in panels if axes.axison or axes.get_legend() or axes.texts]
    rows = panels[0].get_subplotspec().get_gridspec().nrows  # type: ignore[union-attr]
    height = min(figure.get_figheight() / rows, PHONE_HEIGHT)
    for axes in panels:
        if axes not in shown:
            axes.remove()
    grid = figure.add_gridspec(len(shown), 1)
    for row, axes in enumerate(shown):
        axes.set_subplotspec(grid[row])
        if axes.axison:
            axes.tick_params(labelleft=True, labelbottom=True)
            # Of panels that share an axis, only the outer ones have its label.
            axes.set_xlabel(max(each.get_xlabel() for each in axes.get_shared_x_axes().get_siblings(axes)))
            axes.set_ylabel(max(each.get_ylabel() for each in axes.get_shared_y_axes().get_siblings(axes)))
        for text in axes.findobj(Text):
            if isinstance(text, Text) and len(text.get_text()) > PHONE_CHARACTERS:
                text.set_text(fill(text.get_text(), PHONE_CHARACTERS))
    figure.set_size_inches(PHONE_WIDTH, height * len(shown))
    return figure


def square_panels(count: int, *, legend_height: float = 0.0) -> tuple[Figure, list[Axes]]:
    """A figure with `count` square panels, up to three in a row; returns the figure and the panels."""
    columns = min(count, 3)
    rows = -(-count // columns)
    figure = new_figure(({1: 6.4, 2: 4.9, 3: 3.9}[columns] + legend_height) * rows)
    cells = [axes for row in grid_of_axes(figure, rows, columns) for axes in row]
    for axes in cells[count:]:
        axes.set_axis_off()
    return figure, cells[:count]


def grid_of_axes(figure: Figure, rows: int, columns: int, **sharing: Any) -> list[list[Axes]]:
    """Add a grid of panels to the figure: `axes[row][column]`."""
    axes: list[list[Axes]] = figure.subplots(rows, columns, squeeze=False, **sharing).tolist()
    return axes


def style_axes(axes: Axes, *, title: str = "", x: str = "", y: str = "", grid: bool = True) -> None:
    """Set title and axis labels, remove the top and right spines, and draw a faint grid."""
    axes.set_title(title, loc="left", fontsize=TITLE_SIZE, color=TEXT_COLOUR, fontweight="bold", pad=8)
    axes.set_xlabel(x, fontsize=LABEL_SIZE, color=TEXT_COLOUR)
    axes.set_ylabel(y, fontsize=LABEL_SIZE, color=TEXT_COLOUR)
    axes.tick_params(labelsize=TICK_SIZE, colors=TEXT_COLOUR, color=MUTED_COLOUR, length=3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#9CA3AF")
    if grid:
        axes.grid(True, color=GRID_COLOUR, linewidth=0.8)
        axes.set_axisbelow(True)


def hide_ticks(axes: Axes) -> None:
    """Remove the ticks of a panel whose axes have no unit, as in pictures and maps."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color("#D1D5DB")


def add_legend(axes: Axes, **placement: Any) -> None:
    """Add a legend if anything in the panel has a label."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=TICK_SIZE + 0.5, labelcolor=TEXT_COLOUR, **placement)


def show_message(axes: Axes, message: str) -> None:
    """Write a message into the middle of a panel that has no data."""
    axes.text(
        0.5, 0.5, message, ha="center", va="center", transform=axes.transAxes, color=MUTED_COLOUR, size=LABEL_SIZE
    )


def render_png(figure: Figure, dots_per_inch: int) -> bytes:
    """The figure as PNG bytes, without a software or date stamp, so that equal figures give equal files."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=dots_per_inch, metadata={"Software": None})
    return buffer.getvalue()
