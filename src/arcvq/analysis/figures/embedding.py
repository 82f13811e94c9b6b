"""The codebook seen from above: its codes in two dimensions."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from arcvq.analysis.figures.style import UNUSED_COLOUR, bare, dress, legend, run_colour, say, square_panels
from arcvq.analysis.history import RunHistory
from arcvq.analysis.snapshot import FloatArray, IntArray, evenly_spaced

# t-SNE takes minutes beyond a few thousand points, and points on a page overlap long before.
MAP_LIMIT = 2048

# With fewer codes than this a neighbourhood means nothing; a linear projection is more honest.
FEWEST_FOR_TSNE = 10

# t-SNE's own perplexity (the size of a neighbourhood; not the codebook's perplexity).
NEIGHBOURHOOD = 30.0


def codebook_map(runs: Sequence[RunHistory]) -> Figure:
    """The last codebook of each run in two dimensions; circles are used codes, larger for more use, crosses unused."""
    figure, panels = square_panels(len(runs), legend_height=0.4)
    for position, (axes, run) in enumerate(zip(panels, runs)):
        _draw(axes, run, run_colour(position))
    return figure


def embed(codes: FloatArray) -> tuple[FloatArray, str]:
    """Two coordinates per code, the same on every call, and the name of the method."""
    distinct = len(np.unique(codes, axis=0))
    if distinct < FEWEST_FOR_TSNE:
        return _principal_components(codes), "PCA"
    # Imported here: scikit-learn takes a second that `import arcvq` should not pay.
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    # Scale does not change the neighbourhoods, but tiny codes (a fresh codebook of 1/K) would underflow in float32.
    centred = codes - codes.mean(axis=0)
    scaled = (centred / centred.std()).astype(np.float32)
    neighbourhood = min(NEIGHBOURHOOD, (len(codes) - 1) / 3)
    # One thread: the order of a parallel sum would move the points from run to run.
    with threadpool_limits(limits=1):
        tsne = TSNE(perplexity=neighbourhood, init="pca", learning_rate="auto", random_state=0)
        return np.asarray(tsne.fit_transform(scaled), dtype=np.float64), "t-SNE"


def _principal_components(codes: FloatArray) -> FloatArray:
    left, lengths, _ = np.linalg.svd(codes - codes.mean(axis=0), full_matrices=False)
    points = (left * lengths)[:, :2]
    return np.pad(points, ((0, 0), (0, 2 - points.shape[1])))


def _draw(axes: Axes, run: RunHistory, colour: str) -> None:
    snapshot = run.last_snapshot
    shown: IntArray = np.sort(evenly_spaced(snapshot.most_used_first(), MAP_LIMIT))
    bare(axes)
    if len(shown) == 0:
        dress(axes, title=run.name, grid=False)
        say(axes, "no code is finite")
        return
    points, method = embed(snapshot.codebook[shown])
    counts = snapshot.counts[shown]
    used = counts > 0
    # Area grows with the square root of the count: the few busiest codes must not cover the rest.
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
    dress(axes, title=run.name, x=f"{method}{sample}; the axes carry no unit", grid=False)
    bare(axes)
    for side in ("top", "right"):
        axes.spines[side].set_visible(True)
    legend(axes, loc="upper center", bbox_to_anchor=(0.5, -0.06), ncols=2, markerscale=1.0)
