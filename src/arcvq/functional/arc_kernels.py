"""The ArcLoss for CUDA, in Triton: tiles of the score matrix live in registers and the K × N matrix nowhere. No atomics: each
output element is written by one program in a fixed order. The interpreter (TRITON_INTERPRET=1) runs it on a CPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from arcvq.functional.launches import PROGRAMS, _cdiv, _launch, _power_of_two, _split
from arcvq.functional.row_kernels import LENGTH, Rows, _leftmost, _lower, _products, _rows, _scores
from arcvq.functional.tilings import Tiling, tiling_for

# Top tokens of all parts that the merge holds of one code.
MOST_ENTRIES = 2048


# ---- pieces ----------------------------------------------------------------------------------------------------------


@triton.jit
def _high(x):
    """The eleven leading bits of a float32, which half precision holds."""
    return (x.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)


@triton.jit
def _powers_of_two(exponent):
    """e^x = 2^(x·log2 e): the hardware raises two. What the kernels give and take are natural logarithms."""
    return exponent * 1.4426950408889634


@triton.jit
def _logarithm(peak, total):
    """log(total · 2^peak), natural; −inf for a total of nothing, NaN for one that is none."""
    none = total == 0
    return tl.where(none, float("-inf"), (peak + tl.log2(tl.where(none, 1.0, total))) * 0.6931471805599453)


# ---- per-code statistics -------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["token_count", "code_count", "splits", "split_size"])
def _statistics_kernel(
    z_high_ptr,
    c_high_ptr,
    valid,
    top_cosines,
    top_tokens,
    negatives,
    token_count,
    code_count,
    splits,
    split_size,
    scale,
    length,
    MASKED: tl.constexpr,
    TOP: tl.constexpr,
    SLOTS: tl.constexpr,
    CODES: tl.constexpr,
    TOKENS: tl.constexpr,
    DEPTH: tl.constexpr,
    PIECE: tl.constexpr,
):
    """For each code, of one part of the tokens: its top cosines, which tokens they are, log Σ exp(scale·cos) of the others."""
    square = length * length
    scale = _powers_of_two(scale) / square
    rows = tl.program_id(0) * CODES + tl.arange(0, CODES)
    split = tl.program_id(1)
    slots = tl.arange(0, SLOTS)
    places = tl.arange(0, TOKENS)
    depth = tl.arange(0, PIECE)
    z_low_ptr = _lower(z_high_ptr, token_count, DEPTH)
    c_low_ptr = _lower(c_high_ptr, code_count, DEPTH)
    code_high = _rows(c_high_ptr, rows, code_count, depth, DEPTH)
    code_low = _rows(c_low_ptr, rows, code_count, depth, DEPTH)
    # Slots beyond the k-th hold +inf: they are never the smallest, so never replaced.
    top = tl.zeros((CODES, SLOTS), dtype=tl.float32) + tl.where(slots < TOP, float("-inf"), float("inf"))[None, :]
    token = tl.full((CODES, SLOTS), -1, dtype=tl.int32)
    worst = tl.min(top, axis=1)
    peak = tl.full((CODES,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((CODES,), dtype=tl.float32)
    first = split * split_size
    last = tl.minimum(first + split_size, token_count)
    if DEPTH == PIECE:
        z_high = _rows(z_high_ptr, first + places, last, depth, DEPTH)
        z_low = _rows(z_low_ptr, first + places, last, depth, DEPTH)
    for start in range(first, last, TOKENS):
        columns = start + places
        here = columns < last
        if MASKED:
            here = here & (tl.load(valid + columns, mask=here, other=0) != 0)
        if DEPTH == PIECE:
            cosines = tl.zeros((CODES, TOKENS), dtype=tl.float32)
            cosines = _products(code_high, code_low, tl.trans(z_high), tl.trans(z_low), cosines)
            z_high = _rows(z_high_ptr, columns + TOKENS, last, depth, DEPTH)  # the next tile, on its way meanwhile
            z_low = _rows(z_low_ptr, columns + TOKENS, last, depth, DEPTH)
        else:
            cosines = _scores(
                c_high_ptr,
                c_low_ptr,
                z_high_ptr,
                z_low_ptr,
                code_high,
                code_low,
                rows,
                columns,
                code_count,
                last,
                CODES,
                TOKENS,
                DEPTH,
                PIECE,
            )
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
    tl.store(top_cosines + place, top / square, mask=kept)
    tl.store(top_tokens + place, token, mask=kept)
    tl.store(negatives + at, _logarithm(peak, total), mask=inside)


@triton.jit(do_not_specialize=["code_count", "splits"])
def _merge_kernel(
    part_cosines,
    part_tokens,
    part_negatives,
    top_cosines,
    top_tokens,
    negatives,
    losses,
    tops,
    top_pulls,
    pulls,
    code_count,
    splits,
    scale,
    cos_margin,
    sin_margin,
    smallest_sine,
    gain,
    FINISH: tl.constexpr,
    MONOTONE: tl.constexpr,
    TOP: tl.constexpr,
    SLOTS: tl.constexpr,
    CODES: tl.constexpr,
    ENTRIES: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Parts of the tokens seen as one; what was among the best of a part but not of the whole becomes a negative.

    FINISH: on to each code's loss at once, and to what its backward wants (see `_pull_kernel`).
    """
    rows = tl.program_id(0) * CODES + tl.arange(0, CODES)
    inside = rows < code_count
    entries = tl.arange(0, ENTRIES)
    parts = tl.arange(0, SPLITS)
    slots = tl.arange(0, SLOTS)
    held = inside[:, None] & (entries < splits * TOP)[None, :]
    at = rows[:, None].to(tl.int64) * (splits * TOP) + entries[None, :]
    cosines = tl.load(part_cosines + at, mask=held, other=float("-inf"))
    tokens = tl.load(part_tokens + at, mask=held, other=-1)
    top = tl.full((CODES, SLOTS), float("-inf"), dtype=tl.float32)
    token = tl.full((CODES, SLOTS), -1, dtype=tl.int32)
    for k in range(TOP):
        best = tl.max(cosines, axis=1)
        chosen = (entries[None, :] == _leftmost(cosines, best, ENTRIES)[:, None]) & (best > float("-inf"))[:, None]
        top = tl.where((slots == k)[None, :], best[:, None], top)
        token = tl.where((slots == k)[None, :], tl.max(tl.where(chosen, tokens, -1), axis=1)[:, None], token)
        cosines = tl.where(chosen, float("-inf"), cosines)
    place = rows[:, None].to(tl.int64) * TOP + slots[None, :]
    kept = inside[:, None] & (slots < TOP)[None, :]
    if not FINISH:
        tl.store(top_cosines + place, top, mask=kept)
        tl.store(top_tokens + place, token.to(tl.int64), mask=kept)
    left = _powers_of_two(scale) * cosines
    there = inside[:, None] & (parts < splits)[None, :]
    part = tl.load(
        part_negatives + rows[:, None].to(tl.int64) * splits + parts[None, :], mask=there, other=float("-inf")
    )
    part = _powers_of_two(part)
    peak = tl.maximum(tl.max(left, axis=1), tl.max(part, axis=1))
    shift = tl.where(peak == float("-inf"), 0.0, peak)
    total = tl.sum(tl.exp2(left - shift[:, None]), axis=1) + tl.sum(tl.exp2(part - shift[:, None]), axis=1)
    negative = _logarithm(shift, total)
    tl.store(negatives + rows, negative, mask=inside)
    if FINISH:
        loss, slopes, pull = _finish(top, token, negative, scale, cos_margin, sin_margin, smallest_sine, MONOTONE)
        tl.store(losses + rows, loss, mask=inside)
        across = slots[None, :] * code_count + rows[:, None]
        tl.store(tops + across, token, mask=kept)
        tl.store(top_pulls + across, slopes * gain, mask=kept)
        tl.store(pulls + rows, scale * pull * gain, mask=inside)


def statistics(
    latents: Rows,
    codes: Rows,
    valid: Tensor | None,
    scale: float,
    top_k: int,
    margin: Margin | None = None,
    tiling: Tiling | None = None,
    splits: int | None = None,
) -> tuple[Tensor, ...]:
    """Per code: top cosines (K, k) in falling order, their tokens (K, k), log Σ exp(scale·cos) over the other tokens (K,).

    With a margin, of these the last alone, then each code's loss (K,) and its `Pulls`.
    """
    count, device = codes.count, codes.halves.device
    tiling = tiling or tiling_for("statistics", codes.count, codes.depth)
    programs = _cdiv(codes.count, tiling.rows)
    if splits is None:
        splits = min(PROGRAMS // programs, MOST_ENTRIES // top_k)
    splits, split_size = _split(latents.count, tiling.columns, splits, least=2)
    parts = (
        torch.empty(count * splits, top_k, dtype=torch.float32, device=device),
        torch.empty(count * splits, top_k, dtype=torch.int32, device=device),
        torch.empty(count * splits, dtype=torch.float32, device=device),
    )
    _launch(
        _statistics_kernel,
        (programs, splits),
        (latents.halves if valid is None else valid,),
        (
            latents.halves,
            codes.halves,
            latents.halves if valid is None else valid,
            *parts,
            latents.count,
            codes.count,
            splits,
            split_size,
            float(scale),
            LENGTH,
        ),
        MASKED=valid is not None,
        TOP=top_k,
        SLOTS=_power_of_two(top_k),
        CODES=tiling.rows,
        TOKENS=tiling.columns,
        DEPTH=codes.depth,
        PIECE=min(64, codes.depth),
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    negatives = torch.empty(count, dtype=torch.float32, device=device)
    nothing = (negatives,) * 4
    tops = nothing[:2] if margin else _empty_tops(count, top_k, device)
    finished = (torch.empty_like(negatives), *Pulls.empty(count, top_k, device)) if margin else nothing
    entries = _power_of_two(splits * top_k)
    at_once = max(1, min(32, 2048 // entries))
    _launch(
        _merge_kernel,
        (_cdiv(count, at_once),),
        (),
        (
            *parts,
            *tops,
            negatives,
            *finished,
            count,
            splits,
            float(scale),
            *(margin.numbers if margin else (1.0, 0.0, 1.0)),
            ROOM / margin.steepest(scale) if margin else 0.0,
        ),
        FINISH=margin is not None,
        MONOTONE=margin is not None and margin.monotone,
        TOP=top_k,
        SLOTS=_power_of_two(top_k),
        CODES=at_once,
        ENTRIES=entries,
        SPLITS=_power_of_two(splits),
    )
    return (negatives, *finished) if margin else (*tops, negatives)


def _empty_tops(codes: int, top_k: int, device: torch.device) -> tuple[Tensor, Tensor]:
    return tuple(torch.empty(codes, top_k, dtype=kind, device=device) for kind in (torch.float32, torch.int64))  # type: ignore[return-value]


# ---- the loss of each code -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Margin:
    angle: float
    smallest_sine: float
    monotone: bool

    @property
    def numbers(self) -> tuple[float, float, float]:
        return math.cos(self.angle), math.sin(self.angle), self.smallest_sine

    def steepest(self, scale: float) -> float:
        """No slope of a code's loss is larger, in a cosine or in the negatives."""
        return scale * max(1.0, math.cos(self.angle) + abs(math.sin(self.angle)) / self.smallest_sine)


class Pulls(NamedTuple):
    """How strongly each code pulls its top tokens and pushes the others, on a scale that half precision holds."""

    tops: Tensor  # (k, K) int32, which tokens
    top_pulls: Tensor  # (k, K)
    pulls: Tensor  # (K,)

    @classmethod
    def empty(cls, codes: int, top_k: int, device: torch.device) -> Pulls:
        return cls(
            torch.empty(top_k, codes, dtype=torch.int32, device=device),
            torch.empty(top_k, codes, dtype=torch.float32, device=device),
            torch.empty(codes, dtype=torch.float32, device=device),
        )


@triton.jit
def _finish(top, token, negative, scale, cos_margin, sin_margin, smallest_sine, MONOTONE: tl.constexpr):
    """Each code's loss, softplus(negatives − log Σ exp(s·cos(θ + m))), and its slope in each of the statistics."""
    present = token >= 0
    c = tl.where(present, top, 0.0)
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
    gap = tl.where(seen, negative, 0.0) - peak - tl.log(total)
    # softplus and its slope, without overflow; a code without any token says nothing.
    small = tl.exp(-tl.abs(gap))
    loss = tl.maximum(gap, 0.0) + tl.where(small < 1e-3, small - 0.5 * small * small, tl.log(1 + small))
    pull = tl.where(seen, tl.where(gap >= 0, 1.0, small) / (1 + small), 0.0)
    return tl.where(seen, loss, 0.0), -scale * slope * mass * (pull / total)[:, None], pull


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
    rows = tl.program_id(0) * CODES + tl.arange(0, CODES)
    inside = rows < code_count
    slots = tl.arange(0, SLOTS)
    place = rows[:, None].to(tl.int64) * TOP + slots[None, :]
    held = inside[:, None] & (slots < TOP)[None, :]
    token = tl.load(top_tokens + place, mask=held, other=-1)
    top = tl.load(top_cosines + place, mask=held, other=0.0)
    negative = tl.load(negatives + rows, mask=inside, other=0.0)
    loss, slopes, pull = _finish(top, token, negative, scale, cos_margin, sin_margin, smallest_sine, MONOTONE)
    tl.store(losses + rows, loss, mask=inside)
    tl.store(grad_top + place, slopes, mask=held)
    tl.store(grad_negatives + rows, pull, mask=inside)


def finish(
    top_cosines: Tensor, top_tokens: Tensor, negatives: Tensor, scale: float, margin: Margin
) -> tuple[Tensor, Tensor, Tensor]:
    """Per code: its loss (K,), and the slope of that in its top cosines (K, k) and its negatives (K,)."""
    code_count, top_k = top_cosines.shape
    losses, grad_top, grad_negatives = (torch.empty_like(x) for x in (negatives, top_cosines, negatives))
    _finish_kernel[(_cdiv(code_count, 128),)](
        top_cosines,
        top_tokens,
        negatives,
        losses,
        grad_top,
        grad_negatives,
        code_count,
        scale,
        *margin.numbers,
        MONOTONE=margin.monotone,
        TOP=top_k,
        SLOTS=_power_of_two(top_k),
        CODES=128,
    )
    return losses, grad_top, grad_negatives


# ---- backward ------------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["code_count"])
def _pull_kernel(
    top_tokens,
    grad_top,
    grad_negatives,
    largest,
    tops,
    top_pulls,
    pulls,
    code_count,
    scale,
    room,
    TOP: tl.constexpr,
    CODES: tl.constexpr,
):
    """How strongly each code pulls its top tokens and pushes the others: the largest of all pulls at `room`, which half
    precision holds. One row for each place, so that neighbours lie side by side.
    """
    rows = tl.program_id(0) * CODES + tl.arange(0, CODES)
    inside = rows < code_count
    most = tl.load(largest)
    factor = tl.where(most > 0, room / tl.where(most > 0, most, 1.0), 0.0)
    tl.store(pulls + rows, scale * factor * tl.load(grad_negatives + rows, mask=inside, other=0.0), mask=inside)
    for k in tl.static_range(TOP):
        at = rows.to(tl.int64) * TOP + k
        place = k * code_count + rows
        tl.store(tops + place, tl.load(top_tokens + at, mask=inside, other=-1).to(tl.int32), mask=inside)
        tl.store(top_pulls + place, factor * tl.load(grad_top + at, mask=inside, other=0.0), mask=inside)


@triton.jit(do_not_specialize=["token_count", "code_count", "split_size"])
def _backward_kernel(
    z_high_ptr,
    c_high_ptr,
    negatives,
    tops,
    top_pulls,
    pulls,
    latents,
    inverse_latents,
    valid,
    stretch,
    gradients,
    token_count,
    code_count,
    width,
    split_size,
    scale,
    length,
    shrink,
    MASKED: tl.constexpr,
    TOP: tl.constexpr,
    TOKENS: tl.constexpr,
    CODES: tl.constexpr,
    DEPTH: tl.constexpr,
    PIECE: tl.constexpr,
    OUT: tl.constexpr,
    FINAL: tl.constexpr,
    STRETCHED: tl.constexpr,
):
    """The unit latents' gradient from one part of the codes, too large by LENGTH and by the scale of the pulls: the weights of the
    score matrix are made again tile by tile and multiplied with the codes.

    FINAL: there is but one part and one piece, and the gradient goes on through the normalisation at once.
    """
    scale = _powers_of_two(scale) / (length * length)
    first = tl.program_id(0) * TOKENS
    rows = first + tl.arange(0, TOKENS)
    out = tl.program_id(1) * OUT + tl.arange(0, OUT)
    split = tl.program_id(2)
    z_low_ptr = _lower(z_high_ptr, token_count, DEPTH)
    c_low_ptr = _lower(c_high_ptr, code_count, DEPTH)
    u_high = _rows(z_high_ptr, rows, token_count, tl.arange(0, PIECE), DEPTH)
    u_low = _rows(z_low_ptr, rows, token_count, tl.arange(0, PIECE), DEPTH)
    gradient = tl.zeros((TOKENS, OUT), dtype=tl.float32)
    last = tl.minimum((split + 1) * split_size, code_count)
    for start in range(split * split_size, last, CODES):
        columns = start + tl.arange(0, CODES)
        inside = columns < last
        code_high = _rows(c_high_ptr, columns, last, out, DEPTH)
        code_low = _rows(c_low_ptr, columns, last, out, DEPTH)
        if DEPTH == PIECE:
            cosines = tl.zeros((TOKENS, CODES), dtype=tl.float32)
            cosines = _products(u_high, u_low, tl.trans(code_high), tl.trans(code_low), cosines)
        else:
            cosines = _scores(
                z_high_ptr,
                z_low_ptr,
                c_high_ptr,
                c_low_ptr,
                u_high,
                u_low,
                rows,
                columns,
                token_count,
                last,
                TOKENS,
                CODES,
                DEPTH,
                PIECE,
            )
        # d/dcos of the negatives' log-sum-exp is s·softmax; a code without negatives has log-sum-exp −inf and no such pull.
        negative = tl.load(negatives + columns, mask=inside, other=float("-inf"))
        negative = tl.where(negative > float("-inf"), _powers_of_two(negative), float("inf"))
        pull = tl.load(pulls + columns, mask=inside, other=0.0)
        weights = tl.exp2(scale * cosines - negative[None, :]) * pull[None, :]
        # The top tokens of these codes, where any of them is among these rows.
        hit = columns < 0
        for k in tl.static_range(TOP):
            chosen = tl.load(tops + k * code_count + columns, mask=inside, other=-1)
            hit = hit | ((chosen >= first) & (chosen < first + TOKENS))
        if tl.max(hit.to(tl.int32), axis=0) > 0:
            for k in tl.static_range(TOP):
                chosen = tl.load(tops + k * code_count + columns, mask=inside, other=-1)
                pulled = tl.load(top_pulls + k * code_count + columns, mask=inside, other=0.0)
                weights = tl.where(rows[:, None] == chosen[None, :], pulled[None, :], weights)
        weights_high = _high(weights)
        weights_low = (weights - weights_high).to(tl.float16)
        gradient = _products(weights_high.to(tl.float16), weights_low, code_high, code_low, gradient)
    if FINAL:
        here = rows < token_count
        inverse = tl.load(inverse_latents + rows, mask=here, other=0.0)
        if MASKED:
            here = here & (tl.load(valid + rows, mask=here, other=0) != 0)
        u = _rows(latents, rows, token_count, out, width).to(tl.float32) * inverse[:, None]
        along = _along(tl.sum(gradient * u, axis=1), tl.sum(u * u, axis=1))
        factor = shrink * tl.load(stretch) if STRETCHED else shrink
        gradient = (gradient - u * along[:, None]) * (inverse * factor)[:, None]
        gradient = tl.where(here[:, None], gradient, 0.0)
    place = (split.to(tl.int64) * token_count + rows)[:, None] * width + out[None, :]
    tl.store(gradients + place, gradient, mask=(rows < token_count)[:, None] & (out < width)[None, :])


@triton.jit
def _along(product, square):
    """Back through z/‖z‖: what points along z is lost, the rest shrinks with its length. Rows without a direction pass as they are:
    they were divided by 1, and are not of length 1.
    """
    return tl.where(square > 0.5, product, 0.0)


@triton.jit(do_not_specialize=["token_count", "splits"])
def _project_kernel(
    latents,
    inverse_latents,
    valid,
    stretch,
    gradients,
    gradient,
    token_count,
    width,
    splits,
    shrink,
    MASKED: tl.constexpr,
    TOKENS: tl.constexpr,
    DEPTH: tl.constexpr,
    STRETCHED: tl.constexpr,
):
    """The parts summed, and on through the normalisation."""
    rows = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    here = rows < token_count
    inverse = tl.load(inverse_latents + rows, mask=here, other=0.0)
    if MASKED:
        here = here & (tl.load(valid + rows, mask=here, other=0) != 0)
    along = tl.zeros((TOKENS,), dtype=tl.float32)
    square = tl.zeros((TOKENS,), dtype=tl.float32)
    for start in range(0, width, DEPTH):
        depth = start + tl.arange(0, DEPTH)
        z = _rows(latents, rows, token_count, depth, width).to(tl.float32) * inverse[:, None]
        g = _sum_of_parts(gradients, rows, depth, token_count, width, splits, TOKENS, DEPTH)
        along += tl.sum(g * z, axis=1)
        square += tl.sum(z * z, axis=1)
    along = _along(along, square)
    factor = inverse * (shrink * tl.load(stretch) if STRETCHED else shrink)
    for start in range(0, width, DEPTH):
        depth = start + tl.arange(0, DEPTH)
        z = _rows(latents, rows, token_count, depth, width).to(tl.float32) * inverse[:, None]
        g = _sum_of_parts(gradients, rows, depth, token_count, width, splits, TOKENS, DEPTH)
        g = tl.where(here[:, None], (g - z * along[:, None]) * factor[:, None], 0.0)
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


def pulls_of(top_tokens: Tensor, grad_top: Tensor, grad_negatives: Tensor, scale: float) -> tuple[Pulls, Tensor]:
    """Any gradients of the statistics as pulls, and what they were divided by (a scalar tensor)."""
    codes, top_k = top_tokens.shape
    largest = torch.maximum(grad_top.abs().amax(), scale * grad_negatives.abs().amax())
    pulls = Pulls.empty(codes, top_k, largest.device)
    _pull_kernel[(_cdiv(codes, 128),)](
        top_tokens, grad_top, grad_negatives, largest, *pulls, codes, scale, ROOM, TOP=top_k, CODES=128
    )
    return pulls, largest


def backward(
    latents: Tensor,
    split_latents: Rows,
    codes: Rows,
    valid: Tensor | None,
    negatives: Tensor,
    pulls: Pulls,
    stretch: Tensor | None,
    shrink: float,
    scale: float,
    tiling: Tiling | None = None,
    splits: int | None = None,
) -> Tensor:
    """The gradient of the latents (N, D), in their dtype: what the pulls make of it, times stretch · shrink / ROOM. Without a
    stretch, which would have brought it to a size that half precision holds, in float32."""
    (count, width), device = latents.shape, latents.device
    dtype = torch.float32 if stretch is None else latents.dtype
    gradient = torch.empty(count, width, dtype=dtype, device=device)
    if not count:
        return gradient
    tiling = tiling or tiling_for("backward", codes.count, codes.depth)
    programs = _cdiv(count, tiling.rows)
    if splits is None:
        splits = min(LARGEST_PARTS // (count * width), 16 * PROGRAMS // programs)
    splits, split_size = _split(codes.count, tiling.columns, splits, least=32)
    out = min(64, codes.depth)
    final = splits == 1 and out == codes.depth
    parts = gradient if final else torch.empty(splits, count, width, dtype=torch.float32, device=device)
    mask = latents if valid is None else valid
    stretched = latents if stretch is None else stretch
    shrink /= ROOM * LENGTH
    _launch(
        _backward_kernel,
        (programs, codes.depth // out, splits),
        (latents, mask, stretched, split_latents.halves, split_latents.inverse, codes.halves, negatives, *pulls, width),
        (
            split_latents.halves,
            codes.halves,
            negatives,
            *pulls,
            latents,
            split_latents.inverse,
            mask,
            stretched,
            parts,
            count,
            codes.count,
            width,
            split_size,
            float(scale),
            LENGTH,
            shrink,
        ),
        MASKED=valid is not None,
        TOP=pulls.tops.shape[0],
        TOKENS=tiling.rows,
        CODES=tiling.columns,
        DEPTH=codes.depth,
        PIECE=out,
        OUT=out,
        FINAL=final,
        STRETCHED=stretch is not None,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    if not final:
        _project_kernel[(_cdiv(count, 32),)](
            latents,
            split_latents.inverse,
            mask,
            stretched,
            parts,
            gradient,
            count,
            width,
            splits,
            shrink,
            MASKED=valid is not None,
            TOKENS=32,
            DEPTH=out,
            STRETCHED=stretch is not None,
        )
    return gradient


# Elements of all the parts of a gradient together.
LARGEST_PARTS = 2**23
# Where the largest pull is put: well below what half precision holds (65,504), so that the smallest are well above its least.
ROOM = 16384.0
