"""Fused bodies for CUDA, in Triton: tiles of the score matrix live in registers and the K × N matrix nowhere.

Every kernel is deterministic: no atomics, and each output element is written by one program in a fixed order. Products are
IEEE float32. The interpreter (TRITON_INTERPRET=1) runs them on a CPU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Programs that keep every multiprocessor of a large GPU busy; the token axis is split until there are that many.
PROGRAMS = 1024


@triton.jit
def _scores(
    rows_ptr,
    columns_ptr,
    rows,
    columns,
    row_count,
    column_count,
    width,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """(ROWS, COLUMNS) products of two row-major matrices (row_count, width) and (column_count, width)."""
    scores = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(0, width, DEPTH):
        depth = start + tl.arange(0, DEPTH)
        a = tl.load(
            rows_ptr + rows[:, None].to(tl.int64) * width + depth[None, :],
            mask=(rows < row_count)[:, None] & (depth < width)[None, :],
            other=0.0,
        )
        b = tl.load(
            columns_ptr + columns[None, :].to(tl.int64) * width + depth[:, None],
            mask=(columns < column_count)[None, :] & (depth < width)[:, None],
            other=0.0,
        )
        scores = tl.dot(a, b, scores, input_precision="ieee")
    return scores


@triton.jit
def _assign_kernel(
    queries,
    keys,
    bias,
    tokens,
    query_count,
    key_count,
    width,
    BIASED: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    rows = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    best = tl.full((QUERIES,), float("-inf"), dtype=tl.float32)
    index = tl.zeros((QUERIES,), dtype=tl.int32)
    for start in range(0, key_count, KEYS):
        columns = start + tl.arange(0, KEYS)
        scores = _scores(queries, keys, rows, columns, query_count, key_count, width, QUERIES, KEYS, DEPTH)
        if BIASED:
            scores -= tl.load(bias + columns, mask=columns < key_count, other=0.0)[None, :]
        scores = tl.where((columns < key_count)[None, :], scores, float("-inf"))
        value = tl.max(scores, axis=1)
        # argmax takes the leftmost of a tie, and a later block must be strictly better: the lowest index wins.
        better = value > best
        index = tl.where(better, start + tl.argmax(scores, axis=1), index)
        best = tl.where(better, value, best)
    tl.store(tokens + rows, index.to(tl.int64), mask=rows < query_count)


@triton.jit
def _statistics_kernel(
    latents,
    codes,
    valid,
    top_cosines,
    top_tokens,
    negatives,
    token_count,
    code_count,
    width,
    splits,
    split_size,
    scale,
    MASKED: tl.constexpr,
    TOP: tl.constexpr,
    SLOTS: tl.constexpr,
    CODES: tl.constexpr,
    TOKENS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    rows = tl.program_id(0) * CODES + tl.arange(0, CODES)
    split = tl.program_id(1)
    slots = tl.arange(0, SLOTS)
    places = tl.arange(0, TOKENS)
    # Slots beyond the k-th hold +inf: they are never the smallest, so never replaced.
    top = tl.zeros((CODES, SLOTS), dtype=tl.float32) + tl.where(slots < TOP, float("-inf"), float("inf"))[None, :]
    token = tl.full((CODES, SLOTS), -1, dtype=tl.int32)
    peak = tl.full((CODES,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((CODES,), dtype=tl.float32)
    first = split * split_size
    last = tl.minimum(first + split_size, token_count)
    for start in range(first, last, TOKENS):
        columns = start + places
        here = columns < last
        if MASKED:
            here = here & (tl.load(valid + columns, mask=here, other=0) != 0)
        cosines = _scores(codes, latents, rows, columns, code_count, token_count, width, CODES, TOKENS, DEPTH)
        cosines = tl.where(here[None, :], cosines, float("-inf"))
        # While some code finds a token better than its worst of the top k: swap them; the loser joins the negatives.
        best = tl.max(cosines, axis=1)
        worst = tl.min(top, axis=1)
        while tl.max((best > worst).to(tl.int32), axis=0) > 0:
            better = best > worst
            at = tl.argmax(cosines, axis=1)
            swapped = (slots[None, :] == tl.argmin(top, axis=1)[:, None]) & better[:, None]
            evicted = tl.where(better & (worst > float("-inf")), scale * worst, float("-inf"))
            new_peak = tl.maximum(peak, evicted)
            shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
            total = total * tl.exp(peak - shift) + tl.exp(evicted - shift)
            peak = new_peak
            top = tl.where(swapped, best[:, None], top)
            token = tl.where(swapped, (start + at)[:, None], token)
            cosines = tl.where((places[None, :] == at[:, None]) & better[:, None], float("-inf"), cosines)
            best = tl.max(cosines, axis=1)
            worst = tl.min(top, axis=1)
        # What is left of the tile are negatives.
        new_peak = tl.maximum(peak, scale * best)
        shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        total = total * tl.exp(peak - shift) + tl.sum(tl.exp(scale * cosines - shift[:, None]), axis=1)
        peak = new_peak
    inside = rows < code_count
    at = rows.to(tl.int64) * splits + split
    place = at[:, None] * TOP + slots[None, :]
    kept = inside[:, None] & (slots < TOP)[None, :]
    tl.store(top_cosines + place, top, mask=kept)
    tl.store(top_tokens + place, token.to(tl.int64), mask=kept)
    tl.store(
        negatives + at, tl.where(total > 0, peak + tl.log(tl.where(total > 0, total, 1.0)), float("-inf")), mask=inside
    )


@triton.jit
def _backward_kernel(
    latents,
    codes,
    valid,
    top_tokens,
    negatives,
    grad_top,
    grad_negatives,
    grad_latents,
    token_count,
    code_count,
    width,
    scale,
    MASKED: tl.constexpr,
    TOP: tl.constexpr,
    TOKENS: tl.constexpr,
    CODES: tl.constexpr,
    DEPTH: tl.constexpr,
    OUT: tl.constexpr,
):
    rows = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    out = tl.program_id(1) * OUT + tl.arange(0, OUT)
    here = rows < token_count
    if MASKED:
        here = here & (tl.load(valid + rows, mask=here, other=0) != 0)
    gradient = tl.zeros((TOKENS, OUT), dtype=tl.float32)
    for start in range(0, code_count, CODES):
        columns = start + tl.arange(0, CODES)
        inside = columns < code_count
        cosines = _scores(latents, codes, rows, columns, token_count, code_count, width, TOKENS, CODES, DEPTH)
        # d/dcos of the negatives' log-sum-exp is s·softmax; a code without negatives has log-sum-exp −inf and no such pull.
        negative = tl.load(negatives + columns, mask=inside, other=float("-inf"))
        pull = scale * tl.load(grad_negatives + columns, mask=inside, other=0.0)
        some = negative > float("-inf")
        weights = tl.exp(scale * cosines - tl.where(some, negative, float("inf"))[None, :]) * pull[None, :]
        weights = tl.where(here[:, None] & some[None, :], weights, 0.0)
        for k in tl.static_range(TOP):
            chosen = tl.load(top_tokens + columns.to(tl.int64) * TOP + k, mask=inside, other=-1)
            pulled = tl.load(grad_top + columns.to(tl.int64) * TOP + k, mask=inside, other=0.0)
            weights = tl.where(rows[:, None] == chosen[None, :], pulled[None, :], weights)
        code = tl.load(
            codes + columns[:, None].to(tl.int64) * width + out[None, :],
            mask=inside[:, None] & (out < width)[None, :],
            other=0.0,
        )
        gradient = tl.dot(weights, code, gradient, input_precision="ieee")
    tl.store(
        grad_latents + rows[:, None].to(tl.int64) * width + out[None, :],
        gradient,
        mask=(rows < token_count)[:, None] & (out < width)[None, :],
    )


def assign(queries: Tensor, keys: Tensor, bias: Tensor | None) -> Tensor:
    """argmax_j (q·k_j − bias_j) for each row: (N,) int64, ties to the lowest index."""
    count, width = queries.shape
    tokens = torch.empty(count, dtype=torch.int64, device=queries.device)
    if count:
        block = 64
        _assign_kernel[(triton.cdiv(count, block),)](
            queries.contiguous(),
            keys.contiguous(),
            keys if bias is None else bias,
            tokens,
            count,
            keys.shape[0],
            width,
            BIASED=bias is not None,
            QUERIES=block,
            KEYS=64,
            DEPTH=_depth(width),
        )
    return tokens


def statistics(
    latents: Tensor, codes: Tensor, valid: Tensor | None, scale: float, top_k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Per-code statistics of S parts of the tokens: top cosines (K, S, k), their tokens (K, S, k), negatives (K, S)."""
    (count, width), code_count = latents.shape, codes.shape[0]
    block_codes, block_tokens = 64, 64
    programs = triton.cdiv(code_count, block_codes)
    splits = max(1, min(triton.cdiv(PROGRAMS, programs), triton.cdiv(count, 4 * block_tokens)))
    split_size = triton.cdiv(triton.cdiv(max(1, count), splits), block_tokens) * block_tokens
    splits = max(1, triton.cdiv(count, split_size))
    top_cosines = codes.new_empty(code_count, splits, top_k)
    top_tokens = torch.empty(code_count, splits, top_k, dtype=torch.int64, device=codes.device)
    negatives = codes.new_empty(code_count, splits)
    _statistics_kernel[(programs, splits)](
        latents.contiguous(),
        codes.contiguous(),
        latents if valid is None else valid,
        top_cosines,
        top_tokens,
        negatives,
        count,
        code_count,
        width,
        splits,
        split_size,
        scale,
        MASKED=valid is not None,
        TOP=top_k,
        SLOTS=triton.next_power_of_2(top_k),
        CODES=block_codes,
        TOKENS=block_tokens,
        DEPTH=_depth(width),
    )
    return top_cosines, top_tokens, negatives


def statistics_backward(
    latents: Tensor,
    codes: Tensor,
    valid: Tensor | None,
    top_tokens: Tensor,
    negatives: Tensor,
    grad_top: Tensor,
    grad_negatives: Tensor,
    scale: float,
) -> Tensor:
    count, width = latents.shape
    gradient = torch.empty_like(latents)
    if count:
        block, out = 64, max(16, min(128, triton.next_power_of_2(width)))
        _backward_kernel[(triton.cdiv(count, block), triton.cdiv(width, out))](
            latents.contiguous(),
            codes.contiguous(),
            latents if valid is None else valid,
            top_tokens.contiguous(),
            negatives.contiguous(),
            grad_top.contiguous(),
            grad_negatives.contiguous(),
            gradient,
            count,
            codes.shape[0],
            width,
            scale,
            MASKED=valid is not None,
            TOP=top_tokens.shape[1],
            TOKENS=block,
            CODES=64,
            DEPTH=_depth(width),
            OUT=out,
        )
    return gradient


def _depth(width: int) -> int:
    """How much of the width a product takes at once: at least 16, which tl.dot wants."""
    return max(16, min(64, triton.next_power_of_2(width)))
