"""Maps of the codebooks: their codes in two dimensions."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from arcvq.analysis.figures.style import (
    UNUSED_COLOUR,
    add_legend,
    hide_ticks,
    run_colour,
    show_message,
    square_panels,
    style_axes,
)
from arcvq.analysis.history import RunHistory
from arcvq.analysis.snapshot import FloatArray, IntArray, evenly_spaced

# t-SNE takes minutes for more than a few thousand points, and they overlap on the page.
MAP_LIMIT = 2048

# With fewer codes than this the neighbourhoods of t-SNE mean nothing: use PCA.
MIN_TSNE_CODES = 10

# The size of a neighbourhood in t-SNE; not the perplexity of the codebook.
TSNE_PERPLEXITY = 30.0


def codebook_map(runs: Sequence[RunHistory]) -> Figure:
    """The last codebook of each run in two dimensions: used codes as circles, larger for more tokens; unused ones as crosses."""
    figure, panels = square_panels(len(runs), legend_height=0.4)
    for position, (axes, run) in enumerate(zip(panels, runs)):
        _draw_map(axes, run, run_colour(position))
    return figure


def project_to_2d(codes: FloatArray) -> tuple[FloatArray, str]:
    """Two coordinates per code, the same on every call, and the name of the method."""
    distinct = len(np.unique(codes, axis=0))
    if distinct < MIN_TSNE_CODES:
        return _principal_components(codes), "PCA"
    # Imported here: scikit-learn takes a second to import.
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    # Tiny codes (a new codebook of 1/K) would underflow in float32; scaling does not change the neighbourhoods.
    centred = codes - codes.mean(axis=0)
    scaled = (centred / centred.std()).astype(np.float32)
    perplexity = min(TSNE_PERPLEXITY, (len(codes) - 1) / 3)
    # One thread: the order of a parallel sum would change the points between calls.
    with threadpool_limits(limits=1):
        tsne = TSNE(perplexity=perplexity, init="pca", learning_rate="auto", random_state=0)
        return np.asarray(tsne.fit_transform(scaled), dtype=np.float64), "t-SNE"


def _principal_components(codes: FloatArray) -> FloatArray:
    """The first two principal components of each code, (n, 2)."""
    left, lengths, _ = np.linalg.svd(codes - codes.mean(axis=0), full_matrices=False)
    points = (left * lengths)[:, :2]
    return np.pad(points, ((0, 0), (0, 2 - points.shape[1])))


def _draw_map(axes: Axes, run: RunHistory, colour: str) -> None:
    """Draw the map of one run into a panel."""
    snapshot = run.last_snapshot
    shown: IntArray = np.sort(evenly_spaced(snapshot.most_used_first(), MAP_LIMIT))
    hide_ticks(axes)
    if len(shown) == 0:
        style_axes(axes, title=run.name, grid=False)
        show_message(axes, "no code is finite")
        return
    points, method = project_to_2d(snapshot.codebook[shown])
    counts = snapshot.counts[shown]
    used = counts > 0
    # Area grows with the square root of the count, so that frequent codes do not cover the rest.
    areas = 12.0 + 120.0 * np.sqrt(counts / max(int(counts.max()), 1))
    axes.scatter(
        points[~used, 0], points[~used, 1], marker="x", s=22, color=UNUSED_COLOUR, linewidths=1.0, alpha=0.75,
        label=f"unused ({int((~used).sum()):,})",
    )  # fmt: skip
    axes.scatter(
        points[used, 0], points[used, 1], marker="o", s=areas[used], color=colour, edgecolors="white", linewidths=0.6,
        alpha=0.85, label=f"used ({int(used.sum()):,})",
    )  # fmt: skip
    axes.margins(0.06)
    sample = "" if len(shown) == snapshot.size else f", {len(shown):,} of {snapshot.size:,} codes"
    style_axes(axes, title=run.name, x=f"{method}{sample}; the axes carry no unit", grid=False)
    hide_ticks(axes)
    for side in ("top", "right"):
        axes.spines[side].set_visible(True)
    add_legend(axes, loc="upper center", bbox_to_anchor=(0.5, -0.06), ncols=2, markerscale=1.0)
