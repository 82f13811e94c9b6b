"""The codebook as a wall of windows: one cell per code, lit where the code is in use."""

from io import BytesIO

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.image import imsave

from arcvq.analysis.snapshot import FloatArray, Snapshot, evenly_spaced

COLUMNS = 64
WALL_LIMIT = 4096
CELL_PIXELS = 14
GAP_PIXELS = 3
UNLIT = (0.55, 0.58, 0.63, 0.28)  # translucent grey: reads as "off" on a light page and on a dark one


def code_wall(snapshot: Snapshot, colour: str) -> FloatArray:
    """RGBA cells, (rows, columns, 4), in the codebook's order; opacity grows with the logarithm of the count."""
    shown = evenly_spaced(np.arange(snapshot.size, dtype=np.int64), WALL_LIMIT)
    counts = snapshot.counts[shown].astype(np.float64)
    columns = min(COLUMNS, max(len(shown), 1))
    rows = max(-(-len(shown) // columns), 1)
    cells = np.zeros((rows * columns, 4))
    cells[: len(shown)] = UNLIT
    lit = np.flatnonzero(counts > 0)
    if len(lit):
        # From 0.45, so that a code used once is still plainly lit.
        strength = np.log1p(counts[lit]) / np.log1p(counts.max())
        cells[lit, :3] = to_rgb(colour)
        cells[lit, 3] = 0.45 + 0.55 * strength
    return cells.reshape(rows, columns, 4)


def render_wall(snapshot: Snapshot, colour: str) -> bytes:
    """The wall as PNG bytes, with clear gaps between the cells."""
    cells = code_wall(snapshot, colour)
    wall = cells.repeat(CELL_PIXELS, axis=0).repeat(CELL_PIXELS, axis=1)
    within = np.arange(CELL_PIXELS) >= CELL_PIXELS - GAP_PIXELS
    wall[np.tile(within, cells.shape[0])] = 0.0
    wall[:, np.tile(within, cells.shape[1])] = 0.0
    buffer = BytesIO()
    imsave(buffer, wall[:-GAP_PIXELS, :-GAP_PIXELS], format="png", metadata={"Software": None})  # type: ignore[dict-item]
    return buffer.getvalue()
