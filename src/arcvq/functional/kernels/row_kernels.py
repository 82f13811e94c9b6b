"""Rows of latents and codes for CUDA, in Triton: split into float16 halves for the tensor cores, and tiles of their products. The
kernels of the search and of the ArcLoss use them. The interpreter (TRITON_INTERPRET=1) runs them on a CPU.

Precision: rows are scaled to a norm that suits float16 and split in two, x = high + low, which holds 22 bits. Tensor cores multiply
three of the four pairs and sum in float32, which errs about as much as float32 itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from arcvq.functional.kernels.launches import cdiv, launch
from arcvq.functional.kernels.tilings import padded_width

# The norm of a row before it is split: small elements stay above float16's smallest normal number, products below its largest.
SPLIT_NORM = 64.0


@dataclass(frozen=True)
class SplitRows:
    """A matrix (n, width) as float16 halves, `high + low = SPLIT_NORM · row · inverse`, padded to `depth` columns."""

    halves: Tensor  # (2, n, depth) float16
    inverse: Tensor  # (n,) float32: 1/‖row‖, or 1 for a zero row; 1/largest_norm for all rows if that was given

    @property
    def count(self) -> int:
        return self.halves.shape[1]

    @property
    def depth(self) -> int:
        """The padded width of a row."""
        return self.halves.shape[2]


# ---- pieces ----------------------------------------------------------------------------------------------------------


@triton.jit
def load_rows(pointer, rows, row_count, depth, width):
    """The tile (rows, depth) of a row-major matrix; zeros beyond its edges."""
    inside = (rows < row_count)[:, None] & (depth < width)[None, :]
    return tl.load(pointer + rows[:, None].to(tl.int64) * width + depth[None, :], mask=inside, other=0.0)


@triton.jit
def low_half_pointer(high, row_count, DEPTH: tl.constexpr):
    """The address of the low halves of split rows, which follow the high ones."""
    return high + tl.cast(row_count, tl.int64) * DEPTH


@triton.jit
def add_split_products(a_high, a_low, b_high, b_low, total):
    """total + a @ b of split matrices, the small products first."""
    total = tl.dot(a_low, b_high, total)
    total = tl.dot(a_high, b_low, total)
    return tl.dot(a_high, b_high, total)


@triton.jit
def split_row_scores(
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
    """The dot products (ROWS, COLUMNS) of split rows a and b. If a row is one piece, `a_high` and `a_low` already hold it."""
    scores = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    if DEPTH == PIECE:
        depth = tl.arange(0, PIECE)
        b_high = load_rows(b_high_ptr, columns, column_count, depth, DEPTH)
        b_low = load_rows(b_low_ptr, columns, column_count, depth, DEPTH)
        return add_split_products(a_high, a_low, tl.trans(b_high), tl.trans(b_low), scores)
    for start in range(0, DEPTH, PIECE):
        depth = start + tl.arange(0, PIECE)
        piece_high = load_rows(a_high_ptr, rows, row_count, depth, DEPTH)
        piece_low = load_rows(a_low_ptr, rows, row_count, depth, DEPTH)
        b_high = load_rows(b_high_ptr, columns, column_count, depth, DEPTH)
        b_low = load_rows(b_low_ptr, columns, column_count, depth, DEPTH)
        scores = add_split_products(piece_high, piece_low, tl.trans(b_high), tl.trans(b_low), scores)
    return scores


@triton.jit
def first_index_of(scores, value, COLUMNS: tl.constexpr):
    """In each row of scores (rows, COLUMNS), the first column that equals value (rows,): (rows,) int32; COLUMNS if none does."""
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
    largest_norm,
    blocks,
    width,
    min_norm,
    split_norm,
    SHARED_NORM: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    PIECE: tl.constexpr,
):
    """Split two matrices in one launch: the first `blocks` programs split one of them, the rest the other."""
    block = tl.program_id(0)
    if block < blocks:
        rows = block * ROWS + tl.arange(0, ROWS)
        _split_block(
            matrix, high, inverse, largest_norm, rows, row_count, width, min_norm, split_norm, False, ROWS, DEPTH, PIECE
        )
    else:
        rows = (block - blocks) * ROWS + tl.arange(0, ROWS)
        _split_block(
            other_matrix,
            other_high,
            other_inverse,
            largest_norm,
            rows,
            other_count,
            width,
            min_norm,
            split_norm,
            SHARED_NORM,
            ROWS,
            DEPTH,
            PIECE,
        )


@triton.jit
def _split_block(
    matrix,
    high,
    inverse,
    largest_norm,
    rows,
    row_count,
    width,
    min_norm,
    split_norm,
    SHARED_NORM: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    PIECE: tl.constexpr,
):
    """Scale a block of rows to SPLIT_NORM, or with SHARED_NORM by the largest norm, and store its halves."""
    if SHARED_NORM:
        norm = tl.load(largest_norm) + tl.zeros((ROWS,), dtype=tl.float32)
    else:
        total = tl.zeros((ROWS,), dtype=tl.float32)
        for start in range(0, DEPTH, PIECE):
            x = load_rows(matrix, rows, row_count, start + tl.arange(0, PIECE), width).to(tl.float32)
            total += tl.sum(x * x, axis=1)
        norm = tl.sqrt_rn(total)
    factor = tl.where(norm > min_norm, tl.div_rn(1.0, tl.where(norm > min_norm, norm, 1.0)), 1.0)
    tl.store(inverse + rows, factor, mask=rows < row_count)
    low = low_half_pointer(high, row_count, DEPTH)
    for start in range(0, DEPTH, PIECE):
        depth = start + tl.arange(0, PIECE)
        x = load_rows(matrix, rows, row_count, depth, width).to(tl.float32) * (factor * split_norm)[:, None]
        x_high = x.to(tl.float16)
        place = rows[:, None].to(tl.int64) * DEPTH + depth[None, :]
        tl.store(high + place, x_high, mask=(rows < row_count)[:, None])
        tl.store(low + place, (x - x_high.to(tl.float32)).to(tl.float16), mask=(rows < row_count)[:, None])


def split_rows(
    latents: Tensor, codes: Tensor, min_norm: float, largest_norm: Tensor | None = None
) -> tuple[SplitRows, SplitRows]:
    """Latents and codes scaled to SPLIT_NORM and split. With `largest_norm` (a scalar tensor) all codes are scaled by the same factor."""
    width = latents.shape[1]
    depth = padded_width(width)
    split = []
    for count in (latents.shape[0], codes.shape[0]):
        halves = torch.empty(2, count, depth, dtype=torch.float16, device=latents.device)
        inverse = torch.empty(count, dtype=torch.float32, device=latents.device)
        split.append(SplitRows(halves, inverse))
    (z, c), rows = split, 32
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
            codes if largest_norm is None else largest_norm,
            blocks,
            width,
            min_norm,
            SPLIT_NORM,
        ),
        SHARED_NORM=largest_norm is not None,
        ROWS=rows,
        DEPTH=depth,
        PIECE=min(64, depth),
    )
    return z, c
