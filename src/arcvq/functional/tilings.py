"""How the kernels cut their work: the fastest of eight or nine candidates for each kernel and width, on an H200."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kernel = Literal["search", "statistics", "backward"]


@dataclass(frozen=True)
class Tiling:
    """Rows that stay in a program, columns that stream past it, and how its threads are arranged."""

    rows: int
    columns: int
    warps: int
    stages: int = 2


# From how many codes on there are many: a walk is long then, and the start of it no longer matters.
MANY = 8192
# By kernel and padded width (0: all wider ones), with few codes and with many. Not by the number of tokens, which may change
# from batch to batch: a new one compiles nothing.
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

# Sums by code: codes that stay in a program, tokens that stream past it.
SUMS = Tiling(128, 32, 4, 3)
# Up to so many codes each token is counted by comparing it with every code.
FEW_CODES = 1024


def use_one_hot(width: int) -> int:
    """Up to so many codes rows of this width are summed by comparing every token with every code, which costs in proportion to
    both; with more the tokens are sorted. Measured on an H200 at widths of 16, 64 and 256, with 30,720 to 65,536 tokens."""
    return 1024 if width <= 16 else 512 if width <= 64 else 256


def tiling_for(kernel: Kernel, codes: int, depth: int) -> Tiling:
    widths = TILINGS[kernel]
    return widths.get(depth, widths[0])[codes >= MANY]


def padded_width(width: int) -> int:
    """How wide the kernels make a row: a power of two from 16 to 64, then multiples of 64."""
    return max(16, 1 << (width - 1).bit_length()) if width <= 64 else -(-width // 64) * 64
