"""A grid with one cell per code, coloured where the code is in use."""

from io import BytesIO

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.image import imsave

from arcvq.analysis.snapshot import FloatArray, Snapshot, evenly_spaced

COLUMNS = 64
GRID_LIMIT = 4096
CELL_PIXELS = 14
GAP_PIXELS = 3
UNUSED_CELL = (0.55, 0.58, 0.63, 0.28)  # translucent grey, for light and dark pages


def code_grid(snapshot: Snapshot, colour: str) -> FloatArray:
    """RGBA cells (rows, columns, 4) in the codebook's order; opacity grows with the logarithm of the count."""
    shown = evenly_spaced(np.arange(snapshot.size, dtype=np.int64), GRID_LIMIT)
    counts = snapshot.counts[shown].astype(np.float64)
    columns = min(COLUMNS, max(len(shown), 1))
    rows = max(-(-len(shown) // columns), 1)
    cells = np.zeros((rows * columns, 4))
    cells[: len(shown)] = UNUSED_CELL
    used = np.flatnonzero(counts > 0)
    if len(used):
        # At least 0.45, so that a code used once is visible.
        strength = np.log1p(counts[used]) / np.log1p(counts.max())
        cells[used, :3] = to_rgb(colour)
        cells[used, 3] = 0.45 + 0.55 * strength
    return cells.reshape(rows, columns, 4)


def render_code_grid(snapshot: Snapshot, colour: str) -> bytes:
    """The grid as PNG bytes, with transparent gaps between the cells."""
    cells = code_grid(snapshot, colour)
    image = cells.repeat(CELL_PIXELS, axis=0).repeat(CELL_PIXELS, axis=1)
    gap = np.arange(CELL_PIXELS) >= CELL_PIXELS - GAP_PIXELS
    image[np.tile(gap, cells.shape[0])] = 0.0
    image[:, np.tile(gap, cells.shape[1])] = 0.0
    buffer = BytesIO()
    imsave(buffer, image[:-GAP_PIXELS, :-GAP_PIXELS], format="png", metadata={"Software": None})  # type: ignore[dict-item]
    return buffer.getvalue()
