"""The search for CUDA, in Triton: tiles of the score matrix are held in registers only. There are no atomics, so it is deterministic.
The interpreter (TRITON_INTERPRET=1) runs it on a CPU.

Precision: products of split rows err about as much as float32 itself (see row_kernels.py). A latent whose two best scores differ by
less than the error bound is ambiguous: it is searched again in float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from arcvq.functional.kernels.launches import PROGRAMS, cdiv, launch, split_into_parts
from arcvq.functional.kernels.row_kernels import (
    SPLIT_NORM,
    SplitRows,
    first_index_of,
    load_rows,
    low_half_pointer,
    split_row_scores,
    split_rows,
)
from arcvq.functional.kernels.tilings import Tiling, tiling_for


@triton.jit(do_not_specialize=["query_count", "key_count", "split_size"])
def _search_kernel(
    q_high_ptr,
    q_inverse,
    k_high_ptr,
    k_inverse,
    bias,
    best_scores,
    part_tokens,
    tolerances,
    query_count,
    key_count,
    split_size,
    score_error,
    split_norm,
    BIASED: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    DEPTH: tl.constexpr,
    PIECE: tl.constexpr,
):
    """Per query, over one part of the keys: the best score, its index, and the tolerance within which another is ambiguous.

    Scores are those of unit queries times SPLIT_NORM²: neither changes which is the best.
    """
    rows = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    split = tl.program_id(1)
    inside = rows < query_count
    q_low_ptr = low_half_pointer(q_high_ptr, query_count, DEPTH)
    k_low_ptr = low_half_pointer(k_high_ptr, key_count, DEPTH)
    q_high = load_rows(q_high_ptr, rows, query_count, tl.arange(0, PIECE), DEPTH)
    q_low = load_rows(q_low_ptr, rows, query_count, tl.arange(0, PIECE), DEPTH)
    tolerance = tl.zeros((QUERIES,), dtype=tl.float32) + score_error * split_norm * split_norm
    if BIASED:
        # (z·e_j − ½‖e_j‖²) · SPLIT_NORM² / (‖z‖ · largest_norm): the bias is scaled as the rows were.
        bias_scale = split_norm * split_norm * tl.load(q_inverse + rows, mask=inside, other=1.0) * tl.load(k_inverse)
        tolerance += 1.2e-7 * bias_scale / (tl.load(k_inverse) * tl.load(k_inverse))
    best = tl.full((QUERIES,), float("-inf"), dtype=tl.float32)
    index = tl.zeros((QUERIES,), dtype=tl.int32)
    ambiguous = tl.zeros((QUERIES,), dtype=tl.int32)
    first = split * split_size
    last = tl.minimum(first + split_size, key_count)
    for start in range(first, last, KEYS):
        columns = start + tl.arange(0, KEYS)
        scores = split_row_scores(
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
            scores -= bias_scale[:, None] * tl.load(bias + columns, mask=columns < last, other=0.0)[None, :]
        scores = tl.where((columns < last)[None, :], scores, float("-inf"))
        value = tl.max(scores, axis=1)
        # After the first tiles few have a new best: only these take the slow path.
        if tl.max((value >= best - tolerance).to(tl.int32), axis=0) > 0:
            close = tl.sum((scores >= (value - tolerance)[:, None]).to(tl.int32), axis=1) > 1
            ambiguous = tl.where(
                value > best + tolerance, close.to(tl.int32), tl.where(value >= best - tolerance, 1, ambiguous)
            )
            # A later tile must be strictly better: the lowest index of a tie wins.
            index = tl.where(value > best, start + first_index_of(scores, value, KEYS), index)
            best = tl.maximum(value, best)
    if not BIASED:
        # A zero query (padding) is equally near to all codes: the first index stands.
        size = tl.zeros((QUERIES,), dtype=tl.float32)
        for start in range(0, DEPTH, PIECE):
            piece = load_rows(q_high_ptr, rows, query_count, start + tl.arange(0, PIECE), DEPTH)
            size += tl.sum(tl.abs(piece.to(tl.float32)), axis=1)
        ambiguous = tl.where(size == 0, 0, ambiguous)
    place = split.to(tl.int64) * query_count + rows
    tl.store(best_scores + place, best, mask=inside)
    tl.store(part_tokens + place, index, mask=inside)
    # An infinite tolerance marks a query that is ambiguous already.
    tl.store(tolerances + place, tl.where(ambiguous > 0, float("inf"), tolerance), mask=inside)


@triton.jit(do_not_specialize=["query_count", "key_count", "splits"])
def _merge_search_kernel(
    queries,
    keys,
    k_inverse,
    bias,
    best_scores,
    part_tokens,
    tolerances,
    tokens,
    query_count,
    key_count,
    width,
    splits,
    BIASED: tl.constexpr,
    QUERIES: tl.constexpr,
):
    """The best token of all parts; ambiguous queries are searched again in float32."""
    first = tl.program_id(0) * QUERIES
    rows = first + tl.arange(0, QUERIES)
    inside = rows < query_count
    best = tl.load(best_scores + rows, mask=inside, other=0.0)
    index = tl.load(part_tokens + rows, mask=inside, other=0)
    tolerance = tl.load(tolerances + rows, mask=inside, other=0.0)
    for split in range(1, splits):
        place = split * query_count + rows
        score = tl.load(best_scores + place, mask=inside, other=float("-inf"))
        other = tl.load(tolerances + place, mask=inside, other=0.0)
        apart = tl.abs(score - best) > tl.minimum(other, tolerance)
        tolerance = tl.where(apart, tl.where(score > best, other, tolerance), float("inf"))
        index = tl.where(score > best, tl.load(part_tokens + place, mask=inside, other=0), index)
        best = tl.maximum(score, best)
    ambiguous = (tolerance == float("inf")) & inside
    tl.store(tokens + rows, index.to(tl.int64), mask=inside & (tolerance < float("inf")))
    _search_in_float32(queries, keys, k_inverse, bias, tokens, ambiguous, first, key_count, width, BIASED, QUERIES)


@triton.jit
def _search_in_float32(
    queries,
    keys,
    k_inverse,
    bias,
    tokens,
    ambiguous,
    first,
    key_count,
    width,
    BIASED: tl.constexpr,
    QUERIES: tl.constexpr,
):
    """Search the ambiguous queries of a block again in float32, one by one."""
    KEYS: tl.constexpr = 256
    DEPTH: tl.constexpr = 16
    if tl.max(ambiguous.to(tl.int32), axis=0) > 0:
        for i in range(QUERIES):
            if tl.max(tl.where(tl.arange(0, QUERIES) == i, ambiguous.to(tl.int32), 0), axis=0) > 0:
                row = first + i
                best = float("-inf")
                index = row * 0
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
                    index = tl.where(value > best, at, index)
                    best = tl.maximum(value, best)
                tl.store(tokens + row, index.to(tl.int64))


def assign(
    queries: Tensor,
    keys: Tensor,
    bias: Tensor | None,
    min_norm: float,
    tiling: Tiling | None = None,
    splits: int | None = None,
) -> Tensor:
    """Each query's nearest key, (N,) int64: argmax_j q·k_j/‖k_j‖, or with a bias (½‖k_j‖²) argmax_j (q·k_j − bias_j).

    Ties go to the lowest index.
    """
    queries, keys = queries.contiguous(), keys.contiguous()
    # A query's norm does not change which code is its nearest, only how it compares with a bias.
    rows = split_rows(queries, keys, min_norm, None if bias is None else (2 * bias.amax()).sqrt())
    return search(queries, keys, *rows, bias, tiling, splits)


def search(
    queries: Tensor,
    keys: Tensor,
    q: SplitRows,
    k: SplitRows,
    bias: Tensor | None,
    tiling: Tiling | None = None,
    splits: int | None = None,
) -> Tensor:
    """`assign` of contiguous rows that are already split."""
    (count, width), key_count = queries.shape, keys.shape[0]
    tokens = torch.empty(count, dtype=torch.int64, device=queries.device)
    if not count:
        return tokens
    tiling = tiling or tiling_for("search", key_count, q.depth)
    if splits is None:
        splits = PROGRAMS // cdiv(count, tiling.rows)
    splits, split_size = split_into_parts(key_count, tiling.columns, splits, min_blocks=32)
    bias_or_not = keys if bias is None else bias
    scores, tolerances = (torch.empty(splits, count, dtype=torch.float32, device=queries.device) for _ in range(2))
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
            tolerances,
            count,
            key_count,
            split_size,
            _score_error(width),
            SPLIT_NORM,
        ),
        BIASED=bias is not None,
        QUERIES=tiling.rows,
        KEYS=tiling.columns,
        DEPTH=q.depth,
        PIECE=min(64, q.depth),
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    # Few queries per program: with many equal codes most are ambiguous, and a program searches them one after another.
    launch(
        _merge_search_kernel,
        (cdiv(count, 8),),
        (queries, keys, bias_or_not, width),
        (
            queries,
            keys,
            k.inverse,
            bias_or_not,
            scores,
            parts,
            tolerances,
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


def _score_error(width: int) -> float:
    """How much two scores may err together, in units of ‖q‖·‖k‖: a best score that leads by more is the best in float32, too.

    Splitting: 2^-22 for each factor, for the product left out, and for the scaling of a row. Tensor cores: 2^-22 for each
    instruction, which sums sixteen products. The float32 sum it is compared with: 2^-24 for each product.
    """
    return 2 * (4 * 2**-22 + (3 * width / 16) * 2**-22 + width * 2**-24)
