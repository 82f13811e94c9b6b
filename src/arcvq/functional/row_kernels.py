"""Rows of latents and codes for CUDA, in Triton: split for the tensor cores, and tiles of their products, which the kernels of the
search and of the ArcLoss share. The interpreter (TRITON_INTERPRET=1) runs them on a CPU.

Precision. Rows are brought to a length that half precision holds well and split in two: x = high + low, 22 bits of it. Tensor
cores multiply three of the four pairs and sum in float32, which errs about as much as float32 itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from arcvq.functional.launches import cdiv, launch
from arcvq.functional.tilings import padded_width

# The length of a row before it is split: its small elements stay above the smallest normal half, its products below the largest.
LENGTH = 64.0


@dataclass(frozen=True)
class Rows:
    """A matrix (n, width) as the kernels read it: `high + low = LENGTH · row · inverse`, padded to `depth` columns."""

    halves: Tensor  # (2, n, depth) float16
    inverse: (
        Tensor  # (n,) float32: 1/‖row‖, or 1 for a row without a direction; 1/longest for all, when a length was given
    )

    @property
    def count(self) -> int:
        return self.halves.shape[1]

    @property
    def depth(self) -> int:
        return self.halves.shape[2]


# ---- pieces ----------------------------------------------------------------------------------------------------------


@triton.jit
def load_rows(pointer, rows, row_count, depth, width):
    """(rows, depth) of a row-major matrix; zeros beyond its edges."""
    inside = (rows < row_count)[:, None] & (depth < width)[None, :]
    return tl.load(pointer + rows[:, None].to(tl.int64) * width + depth[None, :], mask=inside, other=0.0)


@triton.jit
def lower_halves(high, row_count, DEPTH: tl.constexpr):
    """Where the low halves of split rows begin: behind the high ones."""
    return high + tl.cast(row_count, tl.int64) * DEPTH


@triton.jit
def add_products(a_high, a_low, b_high, b_low, total):
    """total + a @ b, the small products first."""
    total = tl.dot(a_low, b_high, total)
    total = tl.dot(a_high, b_low, total)
    return tl.dot(a_high, b_high, total)


@triton.jit
def row_scores(
    a_high_ptr,
    a_low_ptr,
    b_high_ptr,
    b_low_ptr,
    a_high,
    a_low,
    rows,
    columns,
    row_count,
    column_count,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PIECE: tl.constexpr,
):
    """(ROWS, COLUMNS) products of split rows. A row of one piece is already here as `a_high`, `a_low`."""
    scores = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    if DEPTH == PIECE:
        depth = tl.arange(0, PIECE)
        b_high = load_rows(b_high_ptr, columns, column_count, depth, DEPTH)
        b_low = load_rows(b_low_ptr, columns, column_count, depth, DEPTH)
        return add_products(a_high, a_low, tl.trans(b_high), tl.trans(b_low), scores)
    for start in range(0, DEPTH, PIECE):
        depth = start + tl.arange(0, PIECE)
        piece_high = load_rows(a_high_ptr, rows, row_count, depth, DEPTH)
        piece_low = load_rows(a_low_ptr, rows, row_count, depth, DEPTH)
        b_high = load_rows(b_high_ptr, columns, column_count, depth, DEPTH)
        b_low = load_rows(b_low_ptr, columns, column_count, depth, DEPTH)
        scores = add_products(piece_high, piece_low, tl.trans(b_high), tl.trans(b_low), scores)
    return scores


@triton.jit
def leftmost(scores, value, COLUMNS: tl.constexpr):
    """Where in each row its largest value is, the first place of several: (rows,) int32."""
    columns = tl.arange(0, COLUMNS)[None, :]
    return tl.min(tl.where(scores == value[:, None], columns, COLUMNS), axis=1)


# ---- rows, split -------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["row_count", "other_count", "blocks"])
def _split_kernel(
    matrix,
    high,
    inverse,
    row_count,
    other_matrix,
    other_high,
    other_inverse,
    other_count,
    longest,
    blocks,
    width,
    floor,
    length,
    TOGETHER: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    PIECE: tl.constexpr,
):
    """Two matrices in one launch: the first `blocks` programs take the one, the rest the other."""
    block = tl.program_id(0)
    if block < blocks:
        rows = block * ROWS + tl.arange(0, ROWS)
        _split_block(matrix, high, inverse, longest, rows, row_count, width, floor, length, False, ROWS, DEPTH, PIECE)
    else:
        rows = (block - blocks) * ROWS + tl.arange(0, ROWS)
        _split_block(
            other_matrix,
            other_high,
            other_inverse,
            longest,
            rows,
            other_count,
            width,
            floor,
            length,
            TOGETHER,
            ROWS,
            DEPTH,
            PIECE,
        )


@triton.jit
def _split_block(
    matrix,
    high,
    inverse,
    longest,
    rows,
    row_count,
    width,
    floor,
    length,
    TOGETHER: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    PIECE: tl.constexpr,
):
    if TOGETHER:
        norm = tl.load(longest) + tl.zeros((ROWS,), dtype=tl.float32)
    else:
        total = tl.zeros((ROWS,), dtype=tl.float32)
        for start in range(0, DEPTH, PIECE):
            x = load_rows(matrix, rows, row_count, start + tl.arange(0, PIECE), width).to(tl.float32)
            total += tl.sum(x * x, axis=1)
        norm = tl.sqrt_rn(total)
    factor = tl.where(norm > floor, tl.div_rn(1.0, tl.where(norm > floor, norm, 1.0)), 1.0)
    tl.store(inverse + rows, factor, mask=rows < row_count)
    low = lower_halves(high, row_count, DEPTH)
    for start in range(0, DEPTH, PIECE):
        depth = start + tl.arange(0, PIECE)
        x = load_rows(matrix, rows, row_count, depth, width).to(tl.float32) * (factor * length)[:, None]
        x_high = x.to(tl.float16)
        place = rows[:, None].to(tl.int64) * DEPTH + depth[None, :]
        tl.store(high + place, x_high, mask=(rows < row_count)[:, None])
        tl.store(low + place, (x - x_high.to(tl.float32)).to(tl.float16), mask=(rows < row_count)[:, None])


def split_rows(latents: Tensor, codes: Tensor, floor: float, longest: Tensor | None = None) -> tuple[Rows, Rows]:
    """Each row at LENGTH, or with `longest` (a scalar tensor) the longest code at LENGTH and the others in proportion."""
    width = latents.shape[1]
    depth = padded_width(width)
    found = []
    for count in (latents.shape[0], codes.shape[0]):
        halves = torch.empty(2, count, depth, dtype=torch.float16, device=latents.device)
        inverse = torch.empty(count, dtype=torch.float32, device=latents.device)
        found.append(Rows(halves, inverse))
    (z, c), rows = found, 32
    blocks = cdiv(z.count, rows)
    launch(
        _split_kernel,
        (blocks + cdiv(c.count, rows),),
        (latents, codes, width),
        (
            latents,
            z.halves,
            z.inverse,
            z.count,
            codes,
            c.halves,
            c.inverse,
            c.count,
            codes if longest is None else longest,
            blocks,
            width,
            floor,
            LENGTH,
        ),
        TOGETHER=longest is not None,
        ROWS=rows,
        DEPTH=depth,
        PIECE=min(64, depth),
    )
    return z, c
