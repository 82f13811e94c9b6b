"""Sums and counts by code for CUDA, in Triton: without atomics, so the same inputs give the same bits, and in a time that does not
depend on how the tokens fall. The interpreter (TRITON_INTERPRET=1) runs them on a CPU.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from arcvq.functional.launches import cdiv, parts_of, power_of_two
from arcvq.functional.row_kernels import load_rows
from arcvq.functional.tilings import SUMS, Tiling, use_one_hot

# Programs, as many as a large GPU runs at once and no more, because each leaves sums to be added up; and
# tokens to a program at most, because tensor cores cut off what a running sum has no room for.
SUM_PROGRAMS = 396
LONGEST_SUM = 1024
# How many bfloat16 numbers hold one of these.
PARTS = {torch.float32: 3, torch.float16: 2, torch.bfloat16: 1}
# What the sums are multiplied in. The interpreter would take the bits of a bfloat16 for a whole number.
FACTOR = tl.constexpr(tl.float32 if triton.knobs.runtime.interpret else tl.bfloat16)


@triton.jit
def _leading(x):
    """The eight leading bits of a float32, which bfloat16 holds whatever its size: half precision has no room for gradients."""
    return (x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _add_chosen(total, x, chosen, PARTS: tl.constexpr):
    """total (sums, depth) + chosen @ x: of x (rows, depth) the rows that each sum chooses, the small parts first.

    A product with 0 or 1 is exact, and so are the parts: high + middle + low = x.
    """
    chosen = chosen.to(FACTOR)
    high = _leading(x)
    if PARTS > 1:
        middle = _leading(x - high)
        if PARTS > 2:
            total = tl.dot(chosen, (x - high - middle).to(tl.bfloat16).to(FACTOR), total)
        total = tl.dot(chosen, middle.to(tl.bfloat16).to(FACTOR), total)
    return tl.dot(chosen, high.to(tl.bfloat16).to(FACTOR), total)


@triton.jit(do_not_specialize=["token_count", "code_count", "split_size"])
def _sums_kernel(
    values,
    tokens,
    sums,
    token_count,
    code_count,
    width,
    split_size,
    PARTS: tl.constexpr,
    CODES: tl.constexpr,
    TOKENS: tl.constexpr,
    PIECE: tl.constexpr,
):
    """For each code of a tile, of one part of the tokens: the sum of their values."""
    codes = tl.program_id(0) * CODES + tl.arange(0, CODES)
    depth = tl.program_id(1) * PIECE + tl.arange(0, PIECE)
    split = tl.program_id(2)
    last = tl.minimum((split + 1) * split_size, token_count)
    total = tl.zeros((CODES, PIECE), dtype=tl.float32)
    for start in range(split * split_size, last, TOKENS):
        rows = start + tl.arange(0, TOKENS)
        token = tl.load(tokens + rows, mask=rows < last, other=-1).to(tl.int32)
        x = load_rows(values, rows, last, depth, width).to(tl.float32)
        x = tl.where((token >= 0)[:, None], x, 0.0)  # padding may hold anything
        total = _add_chosen(total, x, codes[:, None] == token[None, :], PARTS)
    place = (split.to(tl.int64) * code_count + codes)[:, None] * width + depth[None, :]
    tl.store(sums + place, total, mask=(codes < code_count)[:, None] & (depth < width)[None, :])


@triton.jit(do_not_specialize=["row_count", "code_count"])
def _segments_kernel(
    values,
    sorted_keys,
    order,
    sums,
    rest,
    rest_keys,
    row_count,
    code_count,
    width,
    FIRST: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    PIECE: tl.constexpr,
):
    """Sums of rows whose keys are in order, block by block. A block adds to `sums` each key that begins in it; what it has of a
    key that began before goes to its row of `rest`, under that key, and those rows are in order as well.

    FIRST: the rows lie out of order, and nothing has been summed.
    """
    block = tl.program_id(0)
    depth = tl.program_id(1) * PIECE + tl.arange(0, PIECE)
    places = tl.arange(0, ROWS)
    rows = block * ROWS + places
    inside = rows < row_count
    key = tl.load(sorted_keys + rows, mask=inside, other=-1).to(tl.int32)
    key = tl.where(key < code_count, key, -1)
    before = tl.load(sorted_keys + rows - 1, mask=inside & (rows > 0), other=-1).to(tl.int32)
    goes_on = (places == 0) & (rows > 0) & (key == before)  # the first segment, if it began before
    segment = tl.cumsum(((places > 0) & (key != before)).to(tl.int32), axis=0)
    at = rows.to(tl.int64)
    if FIRST:
        at = tl.load(order + rows, mask=inside, other=0)
    there = (key >= 0)[:, None] & (depth < width)[None, :]
    x = tl.load(values + at[:, None] * width + depth[None, :], mask=there, other=0.0).to(tl.float32)
    chosen = places[:, None] == segment[None, :]  # (segments, rows)
    total = tl.zeros((ROWS, PIECE), dtype=tl.float32)
    total = _add_chosen(total, x, chosen, PARTS)
    code = tl.max(tl.where(chosen, key[None, :], -1), axis=1)
    begins = (code >= 0) & ~goes_on
    place = sums + code[:, None].to(tl.int64) * width + depth[None, :]
    mask = begins[:, None] & (depth < width)[None, :]
    if FIRST:
        tl.store(place, total, mask=mask)
    else:
        tl.store(place, tl.load(place, mask=mask, other=0.0) + total, mask=mask)
    left_over = tl.sum(tl.where(goes_on[:, None], total, 0.0), axis=0)
    tl.store(rest + block.to(tl.int64) * width + depth, left_over, mask=depth < width)
    if tl.program_id(1) == 0:
        tl.store(rest_keys + block, tl.max(tl.where(places == 0, key, -1), axis=0))


def token_sums(
    values: Tensor,
    tokens: Tensor,
    code_count: int,
    tiling: Tiling = SUMS,
    few: int | None = None,
    splits: int | None = None,
) -> Tensor:
    """The sum of the values (N, D) that fell on each code: (K, D) float32. Tokens that are no code's fall on none.

    A value that is no finite number spoils sums of other codes, too.
    """
    if not values.numel():
        return torch.zeros(code_count, values.shape[1], dtype=torch.float32, device=values.device)
    values, tokens = values.contiguous(), tokens.contiguous()
    if code_count > (use_one_hot(values.shape[1]) if few is None else few):
        return _sums_in_order(values, tokens, code_count)
    (count, width), piece = values.shape, 64
    codes = min(tiling.rows, max(16, power_of_two(code_count)))
    programs = cdiv(code_count, codes), cdiv(width, piece)
    if splits is None:
        splits = max(SUM_PROGRAMS // math.prod(programs), cdiv(count, LONGEST_SUM))
    splits, split_size = parts_of(count, tiling.columns, splits, least=4)
    parts = torch.empty(splits, code_count, width, dtype=torch.float32, device=values.device)
    _sums_kernel[(*programs, splits)](
        values,
        tokens,
        parts,
        count,
        code_count,
        width,
        split_size,
        PARTS=PARTS[values.dtype],
        CODES=codes,
        TOKENS=tiling.columns,
        PIECE=piece,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    return parts[0] if splits == 1 else parts.sum(dim=0)


def _sums_in_order(values: Tensor, tokens: Tensor, code_count: int) -> Tensor:
    """Work that does not grow with the number of codes: the tokens in order, and again what the blocks leave over, until one
    block takes it all.
    """
    count, width = values.shape
    sums = torch.zeros(code_count, width, dtype=torch.float32, device=values.device)
    # Short keys sort in fewer passes.
    keys, order = tokens.to(torch.int16 if code_count < 2**15 else torch.int32).sort(stable=True)
    first, rows, piece = True, 64, 64
    while True:
        blocks = cdiv(count, rows)
        rest = torch.empty(blocks, width, dtype=torch.float32, device=values.device)
        rest_keys = torch.empty(blocks, dtype=torch.int32, device=values.device)
        _segments_kernel[(blocks, cdiv(width, piece))](
            values,
            keys,
            order,
            sums,
            rest,
            rest_keys,
            count,
            code_count,
            width,
            FIRST=first,
            PARTS=PARTS[values.dtype],
            ROWS=rows,
            PIECE=piece,
        )
        if blocks == 1:
            return sums
        values, keys, count, first = rest, rest_keys, blocks, False


@triton.jit(do_not_specialize=["token_count", "code_count"])
def _counts_kernel(tokens, counts, token_count, code_count, TOKENS: tl.constexpr, BINS: tl.constexpr):
    """How many tokens of one block fell on each code."""
    block = tl.program_id(0)
    rows = block * TOKENS + tl.arange(0, TOKENS)
    token = tl.load(tokens + rows, mask=rows < token_count, other=-1).to(tl.int32)
    found = tl.histogram(tl.maximum(token, 0), BINS, mask=(token >= 0) & (token < code_count))
    codes = tl.arange(0, BINS)
    tl.store(counts + block.to(tl.int64) * code_count + codes, found, mask=codes < code_count)


def token_counts(tokens: Tensor, code_count: int) -> Tensor:
    """How many tokens (N,) fell on each code: (K,) int64, for few codes. Tokens that are no code's fall on none."""
    block = 512
    blocks = cdiv(tokens.numel(), block)
    counts = torch.empty(blocks, code_count, dtype=torch.int32, device=tokens.device)
    if blocks:
        bins = max(32, power_of_two(code_count))
        _counts_kernel[(blocks,)](tokens.contiguous(), counts, tokens.numel(), code_count, TOKENS=block, BINS=bins)
    return counts.sum(dim=0)
