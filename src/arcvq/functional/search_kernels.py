"""The search for CUDA, in Triton: tiles of the score matrix live in registers and the K × N matrix nowhere. No atomics, so the
same inputs give the same bits. The interpreter (TRITON_INTERPRET=1) runs it on a CPU.

Precision. The products of split rows err about as much as float32 itself (see row_kernels.py). The search does not leave it at
that: a token whose best code leads by no more than the two can differ is searched again in float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from arcvq.functional.launches import PROGRAMS, cdiv, launch, split_into_parts
from arcvq.functional.row_kernels import LENGTH, Rows, leftmost, load_rows, lower_halves, row_scores, split_rows
from arcvq.functional.tilings import Tiling, tiling_for


@triton.jit(do_not_specialize=["query_count", "key_count", "split_size"])
def _search_kernel(
    q_high_ptr,
    q_inverse,
    k_high_ptr,
    k_inverse,
    bias,
    best_scores,
    part_tokens,
    doubts,
    query_count,
    key_count,
    split_size,
    slack,
    length,
    BIASED: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    DEPTH: tl.constexpr,
    PIECE: tl.constexpr,
):
    """For each query, of one part of the keys: the best score, its index, and whether another comes too close to tell.

    Scores are LENGTH² times too large and those of unit queries: neither changes which is the best.
    """
    rows = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    split = tl.program_id(1)
    inside = rows < query_count
    q_low_ptr = lower_halves(q_high_ptr, query_count, DEPTH)
    k_low_ptr = lower_halves(k_high_ptr, key_count, DEPTH)
    q_high = load_rows(q_high_ptr, rows, query_count, tl.arange(0, PIECE), DEPTH)
    q_low = load_rows(q_low_ptr, rows, query_count, tl.arange(0, PIECE), DEPTH)
    tolerance = tl.zeros((QUERIES,), dtype=tl.float32) + slack * length * length
    if BIASED:
        # (z·e_j − ½‖e_j‖²) · LENGTH² / (‖z‖ · longest): the bias shrinks by what the rows were divided by.
        shrink = length * length * tl.load(q_inverse + rows, mask=inside, other=1.0) * tl.load(k_inverse)
        tolerance += 1.2e-7 * shrink / (tl.load(k_inverse) * tl.load(k_inverse))
    best = tl.full((QUERIES,), float("-inf"), dtype=tl.float32)
    index = tl.zeros((QUERIES,), dtype=tl.int32)
    doubt = tl.zeros((QUERIES,), dtype=tl.int32)
    first = split * split_size
    last = tl.minimum(first + split_size, key_count)
    for start in range(first, last, KEYS):
        columns = start + tl.arange(0, KEYS)
        scores = row_scores(
            q_high_ptr,
            q_low_ptr,
            k_high_ptr,
            k_low_ptr,
            q_high,
            q_low,
            rows,
            columns,
            query_count,
            last,
            QUERIES,
            KEYS,
            DEPTH,
            PIECE,
        )
        if BIASED:
            scores -= shrink[:, None] * tl.load(bias + columns, mask=columns < last, other=0.0)[None, :]
        scores = tl.where((columns < last)[None, :], scores, float("-inf"))
        value = tl.max(scores, axis=1)
        # Few tiles hold a new best once some have been seen: only those are looked at closely.
        if tl.max((value >= best - tolerance).to(tl.int32), axis=0) > 0:
            close = tl.sum((scores >= (value - tolerance)[:, None]).to(tl.int32), axis=1) > 1
            doubt = tl.where(
                value > best + tolerance, close.to(tl.int32), tl.where(value >= best - tolerance, 1, doubt)
            )
            # A later tile must be strictly better: the lowest index of a tie wins.
            index = tl.where(value > best, start + leftmost(scores, value, KEYS), index)
            best = tl.maximum(value, best)
    if not BIASED:
        # A query without a direction (padding) is as near to one code as to another: the first is as good as any.
        size = tl.zeros((QUERIES,), dtype=tl.float32)
        for start in range(0, DEPTH, PIECE):
            piece = load_rows(q_high_ptr, rows, query_count, start + tl.arange(0, PIECE), DEPTH)
            size += tl.sum(tl.abs(piece.to(tl.float32)), axis=1)
        doubt = tl.where(size == 0, 0, doubt)
    place = split.to(tl.int64) * query_count + rows
    tl.store(best_scores + place, best, mask=inside)
    tl.store(part_tokens + place, index, mask=inside)
    # By how much another part must be apart to be told apart; by whatever it is, where this one is in doubt already.
    tl.store(doubts + place, tl.where(doubt > 0, float("inf"), tolerance), mask=inside)


@triton.jit(do_not_specialize=["query_count", "key_count", "splits"])
def _settle_kernel(
    queries,
    keys,
    k_inverse,
    bias,
    best_scores,
    part_tokens,
    doubts,
    tokens,
    query_count,
    key_count,
    width,
    splits,
    BIASED: tl.constexpr,
    QUERIES: tl.constexpr,
):
    """The best of the parts, and what is in doubt settled."""
    first = tl.program_id(0) * QUERIES
    rows = first + tl.arange(0, QUERIES)
    inside = rows < query_count
    best = tl.load(best_scores + rows, mask=inside, other=0.0)
    index = tl.load(part_tokens + rows, mask=inside, other=0)
    tolerance = tl.load(doubts + rows, mask=inside, other=0.0)
    for split in range(1, splits):
        place = split * query_count + rows
        score = tl.load(best_scores + place, mask=inside, other=float("-inf"))
        other = tl.load(doubts + place, mask=inside, other=0.0)
        apart = tl.abs(score - best) > tl.minimum(other, tolerance)
        tolerance = tl.where(apart, tl.where(score > best, other, tolerance), float("inf"))
        index = tl.where(score > best, tl.load(part_tokens + place, mask=inside, other=0), index)
        best = tl.maximum(score, best)
    doubtful = (tolerance == float("inf")) & inside
    tl.store(tokens + rows, index.to(tl.int64), mask=inside & (tolerance < float("inf")))
    _settle(queries, keys, k_inverse, bias, tokens, doubtful, first, key_count, width, BIASED, QUERIES)


@triton.jit
def _settle(
    queries,
    keys,
    k_inverse,
    bias,
    tokens,
    doubtful,
    first,
    key_count,
    width,
    BIASED: tl.constexpr,
    QUERIES: tl.constexpr,
):
    """A query in doubt is searched again in float32, by itself."""
    KEYS: tl.constexpr = 256
    DEPTH: tl.constexpr = 16
    if tl.max(doubtful.to(tl.int32), axis=0) > 0:
        for i in range(QUERIES):
            if tl.max(tl.where(tl.arange(0, QUERIES) == i, doubtful.to(tl.int32), 0), axis=0) > 0:
                row = first + i
                leading = float("-inf")
                leader = row * 0
                for start in range(0, key_count, KEYS):
                    columns = start + tl.arange(0, KEYS)
                    scores = tl.zeros((KEYS,), dtype=tl.float32)
                    for piece in range(0, width, DEPTH):
                        depth = piece + tl.arange(0, DEPTH)
                        q = tl.load(queries + row.to(tl.int64) * width + depth, mask=depth < width, other=0.0)
                        k = load_rows(keys, columns, key_count, depth, width)
                        if not BIASED:
                            k *= tl.load(k_inverse + columns, mask=columns < key_count, other=0.0)[:, None]
                        scores += tl.sum(k * q.to(tl.float32)[None, :], axis=1)
                    if BIASED:
                        scores -= tl.load(bias + columns, mask=columns < key_count, other=0.0)
                    scores = tl.where(columns < key_count, scores, float("-inf"))
                    value = tl.max(scores, axis=0)
                    at = tl.min(tl.where(scores == value, columns, key_count), axis=0)
                    leader = tl.where(value > leading, at, leader)
                    leading = tl.maximum(value, leading)
                tl.store(tokens + row, leader.to(tl.int64))


def assign(
    queries: Tensor,
    keys: Tensor,
    bias: Tensor | None,
    floor: float,
    tiling: Tiling | None = None,
    splits: int | None = None,
) -> Tensor:
    """argmax_j q·k_j/‖k_j‖, or with a bias (½‖k_j‖²) argmax_j (q·k_j − bias_j), for each row: (N,) int64. Ties go to the
    lowest index.
    """
    queries, keys = queries.contiguous(), keys.contiguous()
    # A query's length does not change which code is its nearest, only how it compares with a bias.
    rows = split_rows(queries, keys, floor, None if bias is None else (2 * bias.amax()).sqrt())
    return search(queries, keys, *rows, bias, tiling, splits)


def search(
    queries: Tensor,
    keys: Tensor,
    q: Rows,
    k: Rows,
    bias: Tensor | None,
    tiling: Tiling | None = None,
    splits: int | None = None,
) -> Tensor:
    """`assign` of rows that are in one piece and split already."""
    (count, width), key_count = queries.shape, keys.shape[0]
    tokens = torch.empty(count, dtype=torch.int64, device=queries.device)
    if not count:
        return tokens
    tiling = tiling or tiling_for("search", key_count, q.depth)
    if splits is None:
        splits = PROGRAMS // cdiv(count, tiling.rows)
    splits, split_size = split_into_parts(key_count, tiling.columns, splits, min_blocks=32)
    bias_or_not = keys if bias is None else bias
    scores, doubts = (torch.empty(splits, count, dtype=torch.float32, device=queries.device) for _ in range(2))
    parts = torch.empty(splits, count, dtype=torch.int32, device=queries.device)
    launch(
        _search_kernel,
        (cdiv(count, tiling.rows), splits),
        (bias_or_not,),
        (
            q.halves,
            q.inverse,
            k.halves,
            k.inverse,
            bias_or_not,
            scores,
            parts,
            doubts,
            count,
            key_count,
            split_size,
            _slack(width),
            LENGTH,
        ),
        BIASED=bias is not None,
        QUERIES=tiling.rows,
        KEYS=tiling.columns,
        DEPTH=q.depth,
        PIECE=min(64, q.depth),
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    # Few queries to a program: a codebook with many equal codes leaves many in doubt, and each is a walk of its own.
    launch(
        _settle_kernel,
        (cdiv(count, 8),),
        (queries, keys, bias_or_not, width),
        (
            queries,
            keys,
            k.inverse,
            bias_or_not,
            scores,
            parts,
            doubts,
            tokens,
            count,
            key_count,
            width,
            splits,
        ),
        BIASED=bias is not None,
        QUERIES=8,
    )
    return tokens


def _slack(width: int) -> float:
    """By how much a best score must lead to be the best in float32, too, in units of ‖q‖·‖k‖: twice the sum of the errors.

    Splitting: 2^-22 of each factor and the product left out, and the rounding of a row brought to length. Tensor cores: 2^-22
    for each instruction, which sums sixteen products. The float32 sum it is compared with: 2^-24 for each product.
    """
    return 2 * (4 * 2**-22 + (3 * width / 16) * 2**-22 + width * 2**-24)
