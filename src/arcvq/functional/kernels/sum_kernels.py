"""Sums and counts by code for CUDA, in Triton. There are no atomics, so they are deterministic, and their time does not depend on
which tokens come. The interpreter (TRITON_INTERPRET=1) runs them on a CPU.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from arcvq.functional.kernels.launches import cdiv, next_power_of_two, split_into_parts
from arcvq.functional.kernels.row_kernels import load_rows
from arcvq.functional.kernels.tilings import SUMS, Tiling, use_one_hot

# Programs: as many as a large GPU runs at once, and no more, because each writes partial sums that are added up.
SUM_PROGRAMS = 396
# Tokens per program at most: tensor cores round long running sums.
MAX_TOKENS_PER_SUM = 1024
# How many bfloat16 numbers hold all bits of one number of this type.
BFLOAT16_PARTS = {torch.float32: 3, torch.float16: 2, torch.bfloat16: 1}
# The type of the products' operands. The interpreter would read the bits of a bfloat16 as an integer.
OPERAND_TYPE = tl.constexpr(tl.float32 if triton.knobs.runtime.interpret else tl.bfloat16)


@triton.jit
def _truncate_to_bfloat16(x):
    """The float32 number cut to bfloat16's eight leading bits. (float16 would not hold the range of gradients.)"""
    return (x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _add_selected_rows(total, x, selected, PARTS: tl.constexpr):
    """total (sums, depth) + selected (sums, rows) @ x (rows, depth), `selected` of zeros and ones; the small parts first.

    A product with 0 or 1 is exact, and so are the parts: high + middle + low = x.
    """
    selected = selected.to(OPERAND_TYPE)
    high = _truncate_to_bfloat16(x)
    if PARTS > 1:
        middle = _truncate_to_bfloat16(x - high)
        if PARTS > 2:
            total = tl.dot(selected, (x - high - middle).to(tl.bfloat16).to(OPERAND_TYPE), total)
        total = tl.dot(selected, middle.to(tl.bfloat16).to(OPERAND_TYPE), total)
    return tl.dot(selected, high.to(tl.bfloat16).to(OPERAND_TYPE), total)


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
    """The sums of a tile of codes over one part of the tokens."""
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
        total = _add_selected_rows(total, x, codes[:, None] == token[None, :], PARTS)
    place = (split.to(tl.int64) * code_count + codes)[:, None] * width + depth[None, :]
    tl.store(sums + place, total, mask=(codes < code_count)[:, None] & (depth < width)[None, :])


@triton.jit(do_not_specialize=["row_count", "code_count"])
def _segments_kernel(
    values,
    sorted_keys,
    order,
    sums,
    carry,
    carry_keys,
    row_count,
    code_count,
    width,
    FIRST: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    PIECE: tl.constexpr,
):
    """Sums by key of rows with sorted keys, block by block. A block adds the sum of each key that begins in it to `sums`. Its sum
    of a key that began in an earlier block goes to its row of `carry`, with the key in `carry_keys`, which are sorted too.

    FIRST: the first pass, whose values are read in `order` and whose sums overwrite `sums`.
    """
    block = tl.program_id(0)
    depth = tl.program_id(1) * PIECE + tl.arange(0, PIECE)
    places = tl.arange(0, ROWS)
    rows = block * ROWS + places
    inside = rows < row_count
    key = tl.load(sorted_keys + rows, mask=inside, other=-1).to(tl.int32)
    key = tl.where(key < code_count, key, -1)
    before = tl.load(sorted_keys + rows - 1, mask=inside & (rows > 0), other=-1).to(tl.int32)
    continues = (places == 0) & (rows > 0) & (key == before)  # the first segment, if it began in an earlier block
    segment = tl.cumsum(((places > 0) & (key != before)).to(tl.int32), axis=0)
    at = rows.to(tl.int64)
    if FIRST:
        at = tl.load(order + rows, mask=inside, other=0)
    present = (key >= 0)[:, None] & (depth < width)[None, :]
    x = tl.load(values + at[:, None] * width + depth[None, :], mask=present, other=0.0).to(tl.float32)
    selected = places[:, None] == segment[None, :]  # (segments, rows)
    total = tl.zeros((ROWS, PIECE), dtype=tl.float32)
    total = _add_selected_rows(total, x, selected, PARTS)
    code = tl.max(tl.where(selected, key[None, :], -1), axis=1)
    begins = (code >= 0) & ~continues
    place = sums + code[:, None].to(tl.int64) * width + depth[None, :]
    mask = begins[:, None] & (depth < width)[None, :]
    if FIRST:
        tl.store(place, total, mask=mask)
    else:
        tl.store(place, tl.load(place, mask=mask, other=0.0) + total, mask=mask)
    carried = tl.sum(tl.where(continues[:, None], total, 0.0), axis=0)
    tl.store(carry + block.to(tl.int64) * width + depth, carried, mask=depth < width)
    if tl.program_id(1) == 0:
        tl.store(carry_keys + block, tl.max(tl.where(places == 0, key, -1), axis=0))


def token_sums(
    values: Tensor,
    tokens: Tensor,
    code_count: int,
    tiling: Tiling = SUMS,
    one_hot: bool | None = None,
    splits: int | None = None,
) -> Tensor:
    """The sum of each code's values: (N, D), tokens (N,) → (K, D) float32. Tokens outside 0 … K−1 are left out.

    A non-finite value also makes sums of other codes non-finite.
    """
    if not values.numel():
        return torch.zeros(code_count, values.shape[1], dtype=torch.float32, device=values.device)
    values, tokens = values.contiguous(), tokens.contiguous()
    if not (use_one_hot(code_count, values.shape[1]) if one_hot is None else one_hot):
        return _sorted_token_sums(values, tokens, code_count)
    (count, width), piece = values.shape, 64
    codes = min(tiling.rows, max(16, next_power_of_two(code_count)))
    programs = cdiv(code_count, codes), cdiv(width, piece)
    if splits is None:
        splits = max(SUM_PROGRAMS // math.prod(programs), cdiv(count, MAX_TOKENS_PER_SUM))
    splits, split_size = split_into_parts(count, tiling.columns, splits, min_blocks=4)
    parts = torch.empty(splits, code_count, width, dtype=torch.float32, device=values.device)
    _sums_kernel[(*programs, splits)](
        values,
        tokens,
        parts,
        count,
        code_count,
        width,
        split_size,
        PARTS=BFLOAT16_PARTS[values.dtype],
        CODES=codes,
        TOKENS=tiling.columns,
        PIECE=piece,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    return parts[0] if splits == 1 else parts.sum(dim=0)


def _sorted_token_sums(values: Tensor, tokens: Tensor, code_count: int) -> Tensor:
    """`token_sums` over sorted tokens, in a time that does not grow with the number of codes.

    Blocks of rows are summed, then the partial sums of codes that span several blocks, until one block is left.
    """
    count, width = values.shape
    sums = torch.zeros(code_count, width, dtype=torch.float32, device=values.device)
    # 16-bit keys sort in fewer passes.
    keys, order = tokens.to(torch.int16 if code_count < 2**15 else torch.int32).sort(stable=True)
    first, rows, piece = True, 64, 64
    while True:
        blocks = cdiv(count, rows)
        carry = torch.empty(blocks, width, dtype=torch.float32, device=values.device)
        carry_keys = torch.empty(blocks, dtype=torch.int32, device=values.device)
        _segments_kernel[(blocks, cdiv(width, piece))](
            values,
            keys,
            order,
            sums,
            carry,
            carry_keys,
            count,
            code_count,
            width,
            FIRST=first,
            PARTS=BFLOAT16_PARTS[values.dtype],
            ROWS=rows,
            PIECE=piece,
        )
        if blocks == 1:
            return sums
        values, keys, count, first = carry, carry_keys, blocks, False


@triton.jit(do_not_specialize=["token_count", "code_count"])
def _counts_kernel(tokens, counts, token_count, code_count, TOKENS: tl.constexpr, BINS: tl.constexpr):
    """Write how often each code occurs in one block of tokens, as one row of `counts`."""
    block = tl.program_id(0)
    rows = block * TOKENS + tl.arange(0, TOKENS)
    token = tl.load(tokens + rows, mask=rows < token_count, other=-1).to(tl.int32)
    histogram = tl.histogram(tl.maximum(token, 0), BINS, mask=(token >= 0) & (token < code_count))
    codes = tl.arange(0, BINS)
    tl.store(counts + block.to(tl.int64) * code_count + codes, histogram, mask=codes < code_count)


def token_counts(tokens: Tensor, code_count: int) -> Tensor:
    """How many tokens (N,) each code has: (K,) int64, K ≤ MAX_HISTOGRAM_CODES. Tokens outside 0 … K−1 are not counted."""
    block = 512
    blocks = cdiv(tokens.numel(), block)
    counts = torch.empty(blocks, code_count, dtype=torch.int32, device=tokens.device)
    if blocks:
        bins = max(32, next_power_of_two(code_count))
        _counts_kernel[(blocks,)](tokens.contiguous(), counts, tokens.numel(), code_count, TOKENS=block, BINS=bins)
    return counts.sum(dim=0)
