"""How the kernels cut their work on which GPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Tiling:
    """Rows that stay in a program, columns that stream past it, and how its threads are arranged."""

    rows: int
    columns: int
    warps: int
    stages: int = 2


def tiling_for(kernel: str, device: torch.device, codes: int, depth: int) -> Tiling:
    return Tiling(64, 64, 4)


def padded_width(width: int) -> int:
    """How wide the kernels make a row: a power of two from 16 to 64, then multiples of 64."""
    return max(16, 1 << (width - 1).bit_length()) if width <= 64 else -(-width // 64) * 64
