"""Fused bodies for CUDA, in Triton: tiles of the score matrix live in registers and the K × N matrix nowhere.

Every kernel is deterministic: no atomics, and each output element is written by one program in a fixed order. The
interpreter (TRITON_INTERPRET=1) runs them on a CPU.

Precision. The losses multiply on tensor cores in three parts: each float32 factor is split into two TF32 numbers and three of
the four products are summed, which leaves about two bits less than float32. The search does not trust that: TF32 only tells
it which tiles cannot hold a token's best code, by more than TF32 can err; the others are computed in float32, which decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

# Wider rows than this are multiplied in pieces, and always in ieee by the search: its bound would doubt most tokens.
WIDEST = 128
# Programs that keep every multiprocessor of a large GPU busy; the token axis is split until there are that many.
PROGRAMS = 1024


@dataclass(frozen=True)
class Tiling:
    """Rows that stay in a program, columns that stream past it, and how its threads are arranged."""

    rows: int
    columns: int
    warps: int
    stages: int = 2
    filter: bool = False  # the search only: TF32 passes over the tiles that cannot matter


@triton.jit
def _rows(pointer, rows, row_count, depth, width):
    """(rows, depth) of a row-major matrix, as float32; zeros beyond its edges."""
    inside = (rows < row_count)[:, None] & (depth < width)[None, :]
    return tl.load(pointer + rows[:, None].to(tl.int64) * width + depth[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _high(x):
    """The part of a float32 that TF32 holds; what is left, x − high, is another TF32 number but for its last bits."""
    return (x.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)


@triton.jit
def _product(a_high, a_low, b):
    """a @ bᵀ in three TF32 products, the small ones first."""
    b = tl.trans(b)
    b_high = _high(b)
    scores = tl.dot(a_low, b_high, input_precision="tf32")
    scores = tl.dot(a_high, b - b_high, scores, input_precision="tf32")
    return tl.dot(a_high, b_high, scores, input_precision="tf32")


@triton.jit
def _long_product(
    a_ptr,
    b_ptr,
    rows,
    columns,
    row_count,
    column_count,
    width,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """The same of rows that are wider than DEPTH, in float32."""
    scores = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(0, width, DEPTH):
        depth = start + tl.arange(0, DEPTH)
        a = _rows(a_ptr, rows, row_count, depth, width)
        b = _rows(b_ptr, columns, column_count, depth, width)
        scores = tl.dot(a, tl.trans(b), scores, input_precision="ieee")
    return scores


@triton.jit
def _leftmost(scores, value, COLUMNS: tl.constexpr):
    """Where in each row its largest value is, the first place of several: (rows,) int32."""
    columns = tl.arange(0, COLUMNS)[None, :]
    return tl.min(tl.where(scores == value[:, None], columns, COLUMNS), axis=1)


@triton.jit(do_not_specialize=["query_count", "key_count", "split_size"])
def _assign_kernel(
    queries,
    keys,
    bias,
    reach,
    best_scores,
    tokens,
    query_count,
    key_count,
    width,
    split_size,
    slack,
    BIASED: tl.constexpr,
    FILTER: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    DEPTH: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """For each query, of one part of the keys: the best score in float32 and its index, the lowest of a tie."""
    rows = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    split = tl.program_id(1)
    q = _rows(queries, rows, query_count, tl.arange(0, DEPTH), width)
    if FILTER:
        # How far TF32 may be from float32: slack · ‖q‖·‖k‖ at most, and the rounding of a bias (½‖k‖²) twice.
        tolerance = slack * tl.sqrt(tl.sum(q * q, axis=1))
        if BIASED:
            longest = tl.load(reach)
            tolerance = tolerance * longest + longest * longest * 1.2e-7
    best = tl.full((QUERIES,), float("-inf"), dtype=tl.float32)
    index = tl.zeros((QUERIES,), dtype=tl.int32)
    first = split * split_size
    last = tl.minimum(first + split_size, key_count)
    if FILTER:
        k = _rows(keys, first + tl.arange(0, KEYS), last, tl.arange(0, DEPTH), width)
    for start in range(first, last, KEYS):
        columns = start + tl.arange(0, KEYS)
        inside = columns < last
        if BIASED:
            offset = tl.where(inside, -tl.load(bias + columns, mask=inside, other=0.0), float("-inf"))
        else:
            offset = tl.where(inside, 0.0, float("-inf"))
        promising = 1
        if FILTER:
            rough = tl.dot(q, tl.trans(k), input_precision="tf32") + offset[None, :]
            k = _rows(keys, columns + KEYS, last, tl.arange(0, DEPTH), width)  # the next tile, on its way meanwhile
            promising = tl.max((tl.max(rough, axis=1) + tolerance >= best).to(tl.int32), axis=0)
        if promising > 0:
            if WHOLE:
                same = _rows(keys, columns, last, tl.arange(0, DEPTH), width)
                scores = tl.dot(q, tl.trans(same), input_precision="ieee")
            else:
                scores = _long_product(queries, keys, rows, columns, query_count, last, width, QUERIES, KEYS, DEPTH)
            scores += offset[None, :]
            value = tl.max(scores, axis=1)
            # A later tile must be strictly better: the lowest index of a tie wins.
            index = tl.where(value > best, start + _leftmost(scores, value, KEYS), index)
            best = tl.maximum(value, best)
    place = split.to(tl.int64) * query_count + rows
    tl.store(best_scores + place, best, mask=rows < query_count)
    tl.store(tokens + place, index.to(tl.int64), mask=rows < query_count)


@triton.jit(do_not_specialize=["row_count"])
def _inverse_norm_kernel(matrix, inverse, row_count, width, floor, ROWS: tl.constexpr, DEPTH: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    for start in range(0, width, DEPTH):
        x = _rows(matrix, rows, row_count, start + tl.arange(0, DEPTH), width)
        total += tl.sum(x * x, axis=1)
    norm = tl.sqrt_rn(total)
    tl.store(inverse + rows, tl.where(norm > floor, tl.div_rn(1.0, norm), 1.0), mask=rows < row_count)


@triton.jit
def _powers_of_two(exponent):
    """e^x = 2^(x·log2 e): the hardware raises two. What the kernels give and take are natural logarithms."""
    return exponent * 1.4426950408889634


@triton.jit
def _logarithm(peak, total):
    """log(total · 2^peak), natural; −inf for a total of nothing."""
    some = total > 0
    return tl.where(some, (peak + tl.log2(tl.where(some, total, 1.0))) * 0.6931471805599453, float("-inf"))


@triton.jit(do_not_specialize=["token_count", "code_count", "splits", "split_size"])
def _statistics_kernel(
    latents,
    codes,
    inverse_latents,
    inverse_codes,
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
    WHOLE: tl.constexpr,
):
    """For each code, of one part of the tokens: its top cosines, which tokens they are, log Σ exp(scale·cos) of the others."""
    scale = _powers_of_two(scale)
    rows = tl.program_id(0) * CODES + tl.arange(0, CODES)
    split = tl.program_id(1)
    slots = tl.arange(0, SLOTS)
    places = tl.arange(0, TOKENS)
    code = _rows(codes, rows, code_count, tl.arange(0, DEPTH), width)
    inverse_code = tl.load(inverse_codes + rows, mask=rows < code_count, other=0.0)
    code *= inverse_code[:, None]
    code_high = _high(code)
    code_low = code - code_high
    # Slots beyond the k-th hold +inf: they are never the smallest, so never replaced.
    top = tl.zeros((CODES, SLOTS), dtype=tl.float32) + tl.where(slots < TOP, float("-inf"), float("inf"))[None, :]
    token = tl.full((CODES, SLOTS), -1, dtype=tl.int32)
    worst = tl.min(top, axis=1)
    peak = tl.full((CODES,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((CODES,), dtype=tl.float32)
    first = split * split_size
    last = tl.minimum(first + split_size, token_count)
    inverse = tl.load(inverse_latents + first + places, mask=first + places < last, other=0.0)
    if WHOLE:
        z = _rows(latents, first + places, last, tl.arange(0, DEPTH), width)
    for start in range(first, last, TOKENS):
        columns = start + places
        here = columns < last
        if MASKED:
            here = here & (tl.load(valid + columns, mask=here, other=0) != 0)
        if WHOLE:
            cosines = _product(code_high, code_low, z * inverse[:, None])
            z = _rows(
                latents, columns + TOKENS, last, tl.arange(0, DEPTH), width
            )  # the next tile, on its way meanwhile
        else:
            cosines = _long_product(codes, latents, rows, columns, code_count, last, width, CODES, TOKENS, DEPTH)
            cosines = cosines * inverse_code[:, None] * inverse[None, :]
        inverse = tl.load(inverse_latents + columns + TOKENS, mask=columns + TOKENS < last, other=0.0)
        cosines = tl.where(here[None, :], cosines, float("-inf"))
        # While some code finds a token better than its worst of the top k: swap them; the loser joins the negatives.
        best = tl.max(cosines, axis=1)
        while tl.max((best > worst).to(tl.int32), axis=0) > 0:
            better = best > worst
            at = tl.where(better, _leftmost(cosines, best, TOKENS), -1)
            slot = tl.where(better, tl.argmin(top, axis=1), -1)
            evicted = tl.where(better, scale * worst, float("-inf"))
            new_peak = tl.maximum(peak, evicted)
            shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
            total = total * tl.exp2(peak - shift) + tl.exp2(evicted - shift)
            peak = new_peak
            swapped = slots[None, :] == slot[:, None]
            top = tl.where(swapped, best[:, None], top)
            token = tl.where(swapped, (start + at)[:, None], token)
            cosines = tl.where(places[None, :] == at[:, None], float("-inf"), cosines)
            best = tl.max(cosines, axis=1)
            worst = tl.min(top, axis=1)
        # What is left of the tile are negatives.
        new_peak = tl.maximum(peak, scale * best)
        shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        total = total * tl.exp2(peak - shift) + tl.sum(tl.exp2(scale * cosines - shift[:, None]), axis=1)
        peak = new_peak
    inside = rows < code_count
    at = rows.to(tl.int64) * splits + split
    place = at[:, None] * TOP + slots[None, :]
    kept = inside[:, None] & (slots < TOP)[None, :]
    tl.store(top_cosines + place, top, mask=kept)
    tl.store(top_tokens + place, token.to(tl.int64), mask=kept)
    tl.store(negatives + at, _logarithm(peak, total), mask=inside)


@triton.jit(do_not_specialize=["code_count", "splits"])
def _merge_kernel(
    part_cosines,
    part_tokens,
    part_negatives,
    top_cosines,
    top_tokens,
    negatives,
    code_count,
    splits,
    scale,
    TOP: tl.constexpr,
    CODES: tl.constexpr,
    ENTRIES: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Parts of the tokens seen as one; what was among the best of a part but not of the whole becomes a negative."""
    scale = _powers_of_two(scale)
    rows = tl.program_id(0) * CODES + tl.arange(0, CODES)
    inside = rows < code_count
    entries = tl.arange(0, ENTRIES)
    parts = tl.arange(0, SPLITS)
    held = inside[:, None] & (entries < splits * TOP)[None, :]
    at = rows[:, None].to(tl.int64) * (splits * TOP) + entries[None, :]
    cosines = tl.load(part_cosines + at, mask=held, other=float("-inf"))
    tokens = tl.load(part_tokens + at, mask=held, other=-1)
    for k in tl.static_range(TOP):
        best = tl.max(cosines, axis=1)
        chosen = (entries[None, :] == tl.argmax(cosines, axis=1)[:, None]) & (best > float("-inf"))[:, None]
        place = rows.to(tl.int64) * TOP + k
        tl.store(top_cosines + place, best, mask=inside)
        tl.store(top_tokens + place, tl.max(tl.where(chosen, tokens, -1), axis=1), mask=inside)
        cosines = tl.where(chosen, float("-inf"), cosines)
    left = scale * cosines
    there = inside[:, None] & (parts < splits)[None, :]
    part = tl.load(
        part_negatives + rows[:, None].to(tl.int64) * splits + parts[None, :], mask=there, other=float("-inf")
    )
    part = _powers_of_two(part)
    peak = tl.maximum(tl.max(left, axis=1), tl.max(part, axis=1))
    shift = tl.where(peak == float("-inf"), 0.0, peak)
    total = tl.sum(tl.exp2(left - shift[:, None]), axis=1) + tl.sum(tl.exp2(part - shift[:, None]), axis=1)
    tl.store(negatives + rows, _logarithm(shift, total), mask=inside)


@triton.jit(do_not_specialize=["code_count"])
def _finish_kernel(
    top_cosines,
    top_tokens,
    negatives,
    losses,
    grad_top,
    grad_negatives,
    code_count,
    scale,
    cos_margin,
    sin_margin,
    smallest_sine,
    MONOTONE: tl.constexpr,
    TOP: tl.constexpr,
    SLOTS: tl.constexpr,
    CODES: tl.constexpr,
):
    """Each code's loss, softplus(negatives − log Σ exp(s·cos(θ + m))), and its slope in each of the statistics."""
    rows = tl.program_id(0) * CODES + tl.arange(0, CODES)
    inside = rows < code_count
    slots = tl.arange(0, SLOTS)
    place = rows[:, None].to(tl.int64) * TOP + slots[None, :]
    held = inside[:, None] & (slots < TOP)[None, :]
    present = tl.load(top_tokens + place, mask=held, other=-1) >= 0
    c = tl.where(present, tl.load(top_cosines + place, mask=held, other=0.0), 0.0)
    sine = tl.sqrt_rn(tl.maximum(1 - c * c, 0.0))
    value = tl.minimum(tl.maximum(c, -1.0), 1.0) * cos_margin - sine * sin_margin
    slope = cos_margin + c * sin_margin / tl.maximum(sine, smallest_sine)
    if MONOTONE:
        beyond = c < -cos_margin
        value = tl.where(beyond, c + cos_margin - 1, value)
        slope = tl.where(beyond, 1.0, slope)
    logits = tl.where(present, scale * value, float("-inf"))
    peak = tl.max(logits, axis=1)
    seen = peak > float("-inf")
    peak = tl.where(seen, peak, 0.0)
    mass = tl.exp(logits - peak[:, None])
    total = tl.where(seen, tl.sum(mass, axis=1), 1.0)
    negative = tl.where(seen, tl.load(negatives + rows, mask=inside, other=0.0), 0.0)
    gap = negative - peak - tl.log(total)
    # softplus and its slope, without overflow; a code without any token says nothing.
    small = tl.exp(-tl.abs(gap))
    loss = tl.maximum(gap, 0.0) + tl.where(small < 1e-3, small - 0.5 * small * small, tl.log(1 + small))
    pull = tl.where(seen, tl.where(gap >= 0, 1.0, small) / (1 + small), 0.0)
    tl.store(losses + rows, tl.where(seen, loss, 0.0), mask=inside)
    tl.store(grad_negatives + rows, pull, mask=inside)
    tl.store(grad_top + place, -scale * slope * mass * (pull / total)[:, None], mask=held)


@triton.jit(do_not_specialize=["code_count"])
def _pull_kernel(
    inverse_codes,
    top_tokens,
    negatives,
    grad_top,
    grad_negatives,
    signed_inverse_codes,
    offsets,
    tops,
    pulls,
    code_count,
    scale,
    TOP: tl.constexpr,
    CODES: tl.constexpr,
):
    """What the backward needs of each code: s·g·exp(s·cos − negatives) as sign · 2^(s'·cos + offset), and its top pulls, signed."""
    rows = tl.program_id(0) * CODES + tl.arange(0, CODES)
    inside = rows < code_count
    negative = tl.load(negatives + rows, mask=inside, other=0.0)
    pull = scale * tl.load(grad_negatives + rows, mask=inside, other=0.0)
    sign = tl.where(pull < 0, -1.0, 1.0)
    # A code without negatives has log-sum-exp −inf and no such pull.
    some = (negative > float("-inf")) & (pull != 0)
    offset = tl.log2(tl.where(some, tl.abs(pull), 1.0)) - _powers_of_two(tl.where(some, negative, 0.0))
    tl.store(offsets + rows, tl.where(some, offset, float("-inf")), mask=inside)
    tl.store(signed_inverse_codes + rows, sign * tl.load(inverse_codes + rows, mask=inside, other=0.0), mask=inside)
    for k in tl.static_range(TOP):  # one row for each place: neighbours lie side by side
        place = rows.to(tl.int64) * TOP + k
        tl.store(
            tops + k * code_count + rows, tl.load(top_tokens + place, mask=inside, other=-1).to(tl.int32), mask=inside
        )
        tl.store(pulls + k * code_count + rows, sign * tl.load(grad_top + place, mask=inside, other=0.0), mask=inside)


@triton.jit(do_not_specialize=["token_count", "code_count", "split_size"])
def _backward_kernel(
    latents,
    codes,
    inverse_latents,
    inverse_codes,
    signed_inverse_codes,
    offsets,
    tops,
    pulls,
    gradients,
    token_count,
    code_count,
    width,
    split_size,
    scale,
    TOP: tl.constexpr,
    TOKENS: tl.constexpr,
    CODES: tl.constexpr,
    DEPTH: tl.constexpr,
    OUT: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """The unit latents' gradient from one part of the codes: the weights of the score matrix are made again tile by tile and
    multiplied with the codes.

    A thread holds columns 2q and 2q + 1 of each eight that the first product leaves, and must hand q and q + 4 to the second.
    The codes may come in any order there, so it gets them in the one that leaves every weight where it is.
    """
    first = tl.program_id(0) * TOKENS
    rows = first + tl.arange(0, TOKENS)
    out = tl.program_id(1) * OUT + tl.arange(0, OUT)
    split = tl.program_id(2)
    inverse = tl.load(inverse_latents + rows, mask=rows < token_count, other=0.0)
    if WHOLE:
        u = _rows(latents, rows, token_count, tl.arange(0, DEPTH), width) * inverse[:, None]
        u_high = _high(u)
        u_low = u - u_high
    places = tl.arange(0, CODES)
    gradient = tl.zeros((TOKENS, OUT), dtype=tl.float32)
    last = tl.minimum((split + 1) * split_size, code_count)
    for start in range(split * split_size, last, CODES):
        columns = start + places
        inside = columns < last
        inverse_code = tl.load(inverse_codes + columns, mask=inside, other=0.0)
        if WHOLE:
            code = _rows(codes, columns, last, out, width)
            cosines = _product(u_high, u_low, code * inverse_code[:, None])
        else:
            cosines = _long_product(latents, codes, rows, columns, token_count, last, width, TOKENS, CODES, DEPTH)
            cosines = cosines * inverse[:, None] * inverse_code[None, :]
        # d/dcos of the negatives' log-sum-exp is s·softmax: its factors are in the exponent, but for the sign, which is on the code.
        offset = tl.load(offsets + columns, mask=inside, other=float("-inf"))
        weights = tl.exp2(_powers_of_two(scale) * cosines + offset[None, :])
        # The top tokens of these codes, where any of them is among these rows.
        hit = columns < 0
        for k in tl.static_range(TOP):
            chosen = tl.load(tops + k * code_count + columns, mask=inside, other=-1)
            hit = hit | ((chosen >= first) & (chosen < first + TOKENS))
        if tl.max(hit.to(tl.int32), axis=0) > 0:
            for k in tl.static_range(TOP):
                chosen = tl.load(tops + k * code_count + columns, mask=inside, other=-1)
                pulled = tl.load(pulls + k * code_count + columns, mask=inside, other=0.0)
                weights = tl.where(rows[:, None] == chosen[None, :], pulled[None, :], weights)
        weights = tl.permute(tl.reshape(weights, (TOKENS, CODES // 8, 4, 2)), (0, 1, 3, 2))
        weights = tl.reshape(weights, (TOKENS, CODES))
        weights_high = _high(weights)
        ordered = start + places // 8 * 8 + places % 4 * 2 + places // 4 % 2
        code = _rows(codes, ordered, last, out, width)
        code *= tl.load(signed_inverse_codes + ordered, mask=ordered < last, other=0.0)[:, None]
        code_high = _high(code)
        gradient = tl.dot(weights - weights_high, code_high, gradient, input_precision="tf32")
        gradient = tl.dot(weights_high, code - code_high, gradient, input_precision="tf32")
        gradient = tl.dot(weights_high, code_high, gradient, input_precision="tf32")
    place = (split.to(tl.int64) * token_count + rows)[:, None] * width + out[None, :]
    tl.store(gradients + place, gradient, mask=(rows < token_count)[:, None] & (out < width)[None, :])


@triton.jit(do_not_specialize=["token_count", "splits"])
def _project_kernel(
    latents,
    inverse_latents,
    valid,
    gradients,
    gradient,
    token_count,
    width,
    splits,
    floor,
    MASKED: tl.constexpr,
    TOKENS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """The parts summed, and back through z/‖z‖: what points along z is lost, the rest shrinks with its length."""
    rows = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    here = rows < token_count
    inverse = tl.load(inverse_latents + rows, mask=here, other=0.0)
    if MASKED:
        here = here & (tl.load(valid + rows, mask=here, other=0) != 0)
    along = tl.zeros((TOKENS,), dtype=tl.float32)
    square = tl.zeros((TOKENS,), dtype=tl.float32)
    for start in range(0, width, DEPTH):
        depth = start + tl.arange(0, DEPTH)
        z = _rows(latents, rows, token_count, depth, width)
        g = _sum_of_parts(gradients, rows, depth, token_count, width, splits, TOKENS, DEPTH)
        along += tl.sum(g * z, axis=1)
        square += tl.sum(z * z, axis=1)
    # Rows without a direction pass as they are.
    along = tl.where(tl.sqrt_rn(square) > floor, along * inverse * inverse, 0.0)
    for start in range(0, width, DEPTH):
        depth = start + tl.arange(0, DEPTH)
        z = _rows(latents, rows, token_count, depth, width)
        g = _sum_of_parts(gradients, rows, depth, token_count, width, splits, TOKENS, DEPTH)
        g = tl.where(here[:, None], (g - z * along[:, None]) * inverse[:, None], 0.0)
        tl.store(
            gradient + rows[:, None].to(tl.int64) * width + depth[None, :],
            g,
            mask=(rows < token_count)[:, None] & (depth < width)[None, :],
        )


@triton.jit
def _sum_of_parts(parts, rows, depth, row_count, width, splits, ROWS: tl.constexpr, DEPTH: tl.constexpr):
    total = tl.zeros((ROWS, DEPTH), dtype=tl.float32)
    for split in range(splits):
        total += _rows(parts, split * row_count + rows, (split + 1) * row_count, depth, width)
    return total


def assign(
    queries: Tensor, keys: Tensor, bias: Tensor | None, tiling: Tiling | None = None, splits: int | None = None
) -> Tensor:
    """argmax_j (q·k_j − bias_j) for each row: (N,) int64, ties to the lowest index. A bias is ½‖k‖²; without one ‖k‖ ≤ 1."""
    (count, width), key_count = queries.shape, keys.shape[0]
    tiling = tiling or assign_tiling(count, key_count, width)
    if splits is None:
        splits = PROGRAMS // triton.cdiv(max(1, count), tiling.rows)
    splits, split_size = _split(key_count, tiling.columns, splits, least=16)
    scores = torch.empty(splits, count, dtype=torch.float32, device=queries.device)
    tokens = torch.empty(splits, count, dtype=torch.int64, device=queries.device)
    if count:
        _assign_kernel[(triton.cdiv(count, tiling.rows), splits)](
            queries,
            keys,
            keys if bias is None else bias,
            keys if bias is None else (2 * bias.amax()).sqrt(),
            scores,
            tokens,
            count,
            key_count,
            width,
            split_size,
            _slack(width),
            BIASED=bias is not None,
            FILTER=tiling.filter,
            QUERIES=tiling.rows,
            KEYS=tiling.columns,
            DEPTH=_depth(width),
            WHOLE=width <= WIDEST,
            num_warps=tiling.warps,
            num_stages=tiling.stages,
        )
    if splits == 1:
        return tokens[0]
    return tokens.gather(0, scores.argmax(0, keepdim=True))[0]  # of equal parts the first, which has the lower indices


def inverse_norms(matrix: Tensor, floor: float) -> Tensor:
    """1/‖x‖ for each row; 1 where ‖x‖ ≤ floor."""
    count, width = matrix.shape
    inverse = torch.empty(count, dtype=torch.float32, device=matrix.device)
    if count:
        _inverse_norm_kernel[(triton.cdiv(count, 64),)](
            matrix, inverse, count, width, floor, ROWS=64, DEPTH=_depth(width)
        )
    return inverse


def statistics(
    latents: Tensor,
    codes: Tensor,
    inverse_latents: Tensor,
    inverse_codes: Tensor,
    valid: Tensor | None,
    scale: float,
    top_k: int,
    tiling: Tiling | None = None,
    splits: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Per code: top cosines (K, k) in falling order, their tokens (K, k), log Σ exp(scale·cos) over the other tokens (K,)."""
    (count, width), code_count = latents.shape, codes.shape[0]
    tiling = tiling or statistics_tiling(count, code_count, width)
    programs = triton.cdiv(code_count, tiling.rows)
    if splits is None:
        splits = triton.cdiv(PROGRAMS, programs)
    splits, split_size = _split(count, tiling.columns, splits, least=2)
    parts = _empty_statistics(latents, code_count * splits, top_k)
    _statistics_kernel[(programs, splits)](
        latents,
        codes,
        inverse_latents,
        inverse_codes,
        latents if valid is None else valid,
        *parts,
        count,
        code_count,
        width,
        splits,
        split_size,
        scale,
        MASKED=valid is not None,
        TOP=top_k,
        SLOTS=triton.next_power_of_2(top_k),
        CODES=tiling.rows,
        TOKENS=tiling.columns,
        DEPTH=_depth(width),
        WHOLE=width <= WIDEST,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    whole = _empty_statistics(latents, code_count, top_k)
    entries = triton.next_power_of_2(splits * top_k)
    codes_at_once = max(1, min(16, 4096 // entries))
    _merge_kernel[(triton.cdiv(code_count, codes_at_once),)](
        *parts,
        *whole,
        code_count,
        splits,
        scale,
        TOP=top_k,
        CODES=codes_at_once,
        ENTRIES=entries,
        SPLITS=triton.next_power_of_2(splits),
    )
    return whole


def statistics_backward(
    latents: Tensor,
    codes: Tensor,
    inverse_latents: Tensor,
    inverse_codes: Tensor,
    valid: Tensor | None,
    top_tokens: Tensor,
    negatives: Tensor,
    grad_top: Tensor,
    grad_negatives: Tensor,
    scale: float,
    floor: float,
    tiling: Tiling | None = None,
    splits: int | None = None,
) -> Tensor:
    """The gradient of the latents (N, D), in their dtype."""
    (count, width), code_count = latents.shape, codes.shape[0]
    gradient = torch.empty(count, width, dtype=latents.dtype, device=latents.device)
    if not count:
        return gradient
    whole, depth = width <= WIDEST, _depth(width)
    out = depth if whole else WIDEST
    tiling = tiling or backward_tiling(count, code_count, width)
    if splits is None:
        splits = PROGRAMS // triton.cdiv(count, tiling.rows)
    splits, split_size = _split(code_count, tiling.columns, splits, least=16)
    top_k = top_tokens.shape[1]
    signed_inverse_codes, offsets = torch.empty_like(inverse_codes), torch.empty_like(inverse_codes)
    tops = torch.empty(top_k, code_count, dtype=torch.int32, device=latents.device)
    pulls = torch.empty(top_k, code_count, dtype=torch.float32, device=latents.device)
    _pull_kernel[(triton.cdiv(code_count, 128),)](
        inverse_codes,
        top_tokens,
        negatives,
        grad_top,
        grad_negatives,
        signed_inverse_codes,
        offsets,
        tops,
        pulls,
        code_count,
        scale,
        TOP=top_k,
        CODES=128,
    )
    parts = torch.empty(splits, count, width, dtype=torch.float32, device=latents.device)
    _backward_kernel[(triton.cdiv(count, tiling.rows), triton.cdiv(width, out), splits)](
        latents,
        codes,
        inverse_latents,
        inverse_codes,
        signed_inverse_codes,
        offsets,
        tops,
        pulls,
        parts,
        count,
        code_count,
        width,
        split_size,
        scale,
        TOP=top_k,
        TOKENS=tiling.rows,
        CODES=tiling.columns,
        DEPTH=depth,
        OUT=out,
        WHOLE=whole,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    if splits == 1 and latents.dtype == torch.float32:
        gradient = parts[0]  # each program reads its rows before it writes them
    _project_kernel[(triton.cdiv(count, 32),)](
        latents,
        inverse_latents,
        latents if valid is None else valid,
        parts,
        gradient,
        count,
        width,
        splits,
        floor,
        MASKED=valid is not None,
        TOKENS=32,
        DEPTH=depth,
    )
    return gradient


def finish(
    top_cosines: Tensor,
    top_tokens: Tensor,
    negatives: Tensor,
    scale: float,
    margin: float,
    smallest_sine: float,
    monotone: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Per code: its loss (K,), and the slope of that in its top cosines (K, k) and its negatives (K,)."""
    code_count, top_k = top_cosines.shape
    losses, grad_top, grad_negatives = (torch.empty_like(x) for x in (negatives, top_cosines, negatives))
    _finish_kernel[(triton.cdiv(code_count, 128),)](
        top_cosines,
        top_tokens,
        negatives,
        losses,
        grad_top,
        grad_negatives,
        code_count,
        scale,
        math.cos(margin),
        math.sin(margin),
        smallest_sine,
        MONOTONE=monotone,
        TOP=top_k,
        SLOTS=triton.next_power_of_2(top_k),
        CODES=128,
    )
    return losses, grad_top, grad_negatives


def assign_tiling(count: int, key_count: int, width: int) -> Tiling:
    return Tiling(64, 64, 4, filter=width <= WIDEST and key_count >= 4096)


def statistics_tiling(count: int, code_count: int, width: int) -> Tiling:
    return Tiling(64, 64, 4)


def backward_tiling(count: int, code_count: int, width: int) -> Tiling:
    return Tiling(64, 64, 4)


def _split(length: int, block: int, splits: int, least: int) -> tuple[int, int]:
    """How many parts, of how many each: whole blocks, at least `least` of them to a part."""
    blocks = triton.cdiv(max(1, length), block)
    size = triton.cdiv(blocks, max(1, min(splits, blocks // least)))
    return triton.cdiv(blocks, size), size * block


def _empty_statistics(like: Tensor, rows: int, top_k: int) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.empty(rows, top_k, dtype=torch.float32, device=like.device),
        torch.empty(rows, top_k, dtype=torch.int64, device=like.device),
        torch.empty(rows, dtype=torch.float32, device=like.device),
    )


def _depth(width: int) -> int:
    """How much of a row a product takes at once: at least 16, which tl.dot wants."""
    return max(16, triton.next_power_of_2(width)) if width <= WIDEST else 64


def _slack(width: int) -> float:
    """How far a TF32 product may be from the float32 one, in units of ‖q‖·‖k‖.

    Cutting a factor to TF32 loses at most 2^-10 of it, so two lose 2^-9; summing loses 2^-22 a term on tensor cores and 2^-24 in
    float32.
    """
    return 2**-9 + width * (2**-22 + 2**-24)
