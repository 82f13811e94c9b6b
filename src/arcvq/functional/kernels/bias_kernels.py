"""Adding a bias to channels-last images, and with it the other branch of a residual block; and the bias's gradient, in Triton.

The images are one matrix (rows, channels). Arithmetic is float32. There are no atomics, so the same inputs give the same bits. The
interpreter (TRITON_INTERPRET=1) runs the kernels on a CPU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from arcvq.functional.kernels.launches import cdiv, launch, next_power_of_two, split_into_parts

# Elements of a tile, and channels of it at most; programs that sum over parts of the rows.
TILE, MAX_COLUMNS, WARPS = 4096, 128, 4
SUM_PROGRAMS = 2112
STAGES = 3


@triton.jit(do_not_specialize=["count"])
def add_kernel(x, bias, other, y, count, channels, OTHER: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """x + bias, with OTHER + other, for one tile of the rows."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (rows < count)[:, None] & (columns < channels)[None, :]
    places = rows[:, None] * channels + columns[None, :]
    shift = tl.load(bias + columns, mask=columns < channels, other=0.0).to(tl.float32)
    value = tl.load(x + places, mask=inside, other=0.0).to(tl.float32) + shift[None, :]
    if OTHER:
        value += tl.load(other + places, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + places, value.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["count", "part_size"])
def column_sums_kernel(
    x, sums, count, part_size, channels, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr
):
    """The sum of each channel over one part of the rows: sums (parts, channels)."""
    part = tl.program_id(0).to(tl.int64)
    first = part * part_size
    rows = tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    local = rows[:, None] * channels + columns[None, :]
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for row in tl.range(0, part_size, ROWS, num_stages=STAGES):
        inside = (rows < count - first - row)[:, None] & (columns < channels)[None, :]
        total += tl.load(x + (first + row) * channels + local, mask=inside, other=0.0).to(tl.float32)
    tl.store(sums + part * channels + columns, tl.sum(total, axis=0), mask=columns < channels)


def add(x: Tensor, bias: Tensor, other: Tensor | None) -> Tensor:
    """x (B, C, H, W) + bias (C,) + other; all channels-last."""
    rows, columns, count, channels = _tile(x)
    y = torch.empty_like(x)
    grid = cdiv(count, rows), cdiv(channels, columns)
    second = x if other is None else other
    launch(
        add_kernel,
        grid,
        (x, bias, second, channels),
        (x, bias, second, y, count, channels),
        OTHER=other is not None,
        ROWS=rows,
        COLUMNS=columns,
        num_warps=WARPS,
    )
    return y


def column_sums(x: Tensor) -> Tensor:
    """The sum of each channel of x (B, C, H, W), channels-last: (C,) float32."""
    rows, columns, count, channels = _tile(x)
    tiles = cdiv(channels, columns)
    parts, size = split_into_parts(count, rows, cdiv(SUM_PROGRAMS, tiles), min_blocks=1)
    sums = torch.empty(parts, channels, dtype=torch.float32, device=x.device)
    launch(
        column_sums_kernel,
        (parts, tiles),
        (x, channels),
        (x, sums, count, size, channels),
        ROWS=rows,
        COLUMNS=columns,
        STAGES=STAGES,
        num_warps=WARPS,
    )
    return sums.sum(dim=0)


def _tile(x: Tensor) -> tuple[int, int, int, int]:
    """Rows and columns of a tile, and of the matrix."""
    columns = min(MAX_COLUMNS, next_power_of_two(x.shape[1]))
    return TILE // columns, columns, x.numel() // x.shape[1], x.shape[1]
