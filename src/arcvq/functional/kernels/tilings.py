"""The tile sizes of the kernels: the fastest of eight or nine candidates for each kernel and width, on an H200."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kernel = Literal["search", "statistics", "backward"]


@dataclass(frozen=True)
class Tiling:
    """A tile of the score matrix: the rows that a program keeps, the columns that it loads in turn, and Triton's launch options."""

    rows: int
    columns: int
    warps: int
    stages: int = 2


# From this codebook size on the second tiling is faster.
MANY_CODES = 8192
# By kernel and padded width (0: all wider ones): tilings below MANY_CODES and from there on. They do not depend on the number of
# tokens, so that another batch size compiles nothing.
TILINGS: dict[Kernel, dict[int, tuple[Tiling, Tiling]]] = {
    "search": {
        16: (Tiling(128, 128, 4), Tiling(64, 64, 4, 3)),
        32: (Tiling(64, 256, 4), Tiling(64, 64, 4, 3)),
        64: (Tiling(128, 128, 4), Tiling(64, 64, 4)),
        0: (Tiling(64, 128, 4, 3), Tiling(64, 128, 4)),
    },
    "statistics": {
        16: (Tiling(128, 128, 4), Tiling(64, 64, 4)),
        32: (Tiling(128, 128, 4), Tiling(128, 128, 4)),
        64: (Tiling(128, 128, 4), Tiling(128, 64, 4)),
        0: (Tiling(128, 256, 8), Tiling(128, 256, 8)),
    },
    "backward": {
        16: (Tiling(128, 128, 4), Tiling(128, 32, 4)),
        32: (Tiling(128, 128, 4), Tiling(128, 128, 4)),
        64: (Tiling(64, 128, 4), Tiling(128, 128, 4)),
        0: (Tiling(128, 64, 4), Tiling(128, 64, 4)),
    },
}

# Sums by code: a program keeps the codes and loads the tokens in turn.
SUMS = Tiling(128, 32, 4, 3)
# Codes at most that the kernel of token counts handles.
MAX_HISTOGRAM_CODES = 1024


def use_one_hot(codes: int, width: int) -> bool:
    """Whether sums by code multiply a one-hot matrix of tokens and codes; with more codes sorting the tokens is faster.

    Measured on an H200 at widths of 16, 64 and 256, with 30,720 to 65,536 tokens.
    """
    return codes <= (1024 if width <= 16 else 512 if width <= 64 else 256)


def tiling_for(kernel: Kernel, codes: int, depth: int) -> Tiling:
    """The fastest tiling of a kernel for a codebook of this size and padded width."""
    widths = TILINGS[kernel]
    return widths.get(depth, widths[0])[codes >= MANY_CODES]


def padded_width(width: int) -> int:
    """The width to which the kernels pad a row: a power of two from 16 to 64, then a multiple of 64."""
    return max(16, 1 << (width - 1).bit_length()) if width <= 64 else -(-width // 64) * 64
