"""The ArcLoss for CUDA, in Triton: tiles of the score matrix are held in registers only. There are no atomics, so it is deterministic.
The interpreter (TRITON_INTERPRET=1) runs it on a CPU. Its gradient is in arc_backward_kernels.py.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from arcvq.functional.kernels.arc_finish_kernels import LARGEST_PULL, Margin, Pulls, base_two_exponent, code_losses
from arcvq.functional.kernels.launches import PROGRAMS, cdiv, launch, next_power_of_two, split_into_parts
from arcvq.functional.kernels.row_kernels import (
    SPLIT_NORM,
    SplitRows,
    add_split_products,
    first_index_of,
    load_rows,
    low_half_pointer,
    split_row_scores,
)
from arcvq.functional.kernels.tilings import Tiling, tiling_for

# Top tokens at most, of all parts together, that the merge loads for one code.
MAX_ENTRIES = 2048


# ---- pieces ----------------------------------------------------------------------------------------------------------


@triton.jit
def _log_of_sum(peak, total):
    """The natural logarithm of total · 2^peak; −inf for a total of 0, NaN for NaN."""
    zero = total == 0
    return tl.where(zero, float("-inf"), (peak + tl.log2(tl.where(zero, 1.0, total))) * 0.6931471805599453)


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
    split_norm,
    MASKED: tl.constexpr,
    TOP: tl.constexpr,
    SLOTS: tl.constexpr,
    CODES: tl.constexpr,
    TOKENS: tl.constexpr,
    DEPTH: tl.constexpr,
    PIECE: tl.constexpr,
):
    """Per code, over one part of the tokens: the top cosines, their tokens, and log Σ exp(scale·cos) of the others."""
    square = split_norm * split_norm
    scale = base_two_exponent(scale) / square
    rows = tl.program_id(0) * CODES + tl.arange(0, CODES)
    split = tl.program_id(1)
    slots = tl.arange(0, SLOTS)
    places = tl.arange(0, TOKENS)
    depth = tl.arange(0, PIECE)
    z_low_ptr = low_half_pointer(z_high_ptr, token_count, DEPTH)
    c_low_ptr = low_half_pointer(c_high_ptr, code_count, DEPTH)
    code_high = load_rows(c_high_ptr, rows, code_count, depth, DEPTH)
    code_low = load_rows(c_low_ptr, rows, code_count, depth, DEPTH)
    # Slots beyond the k-th hold +inf: never the smallest, they are never replaced.
    top = tl.zeros((CODES, SLOTS), dtype=tl.float32) + tl.where(slots < TOP, float("-inf"), float("inf"))[None, :]
    token = tl.full((CODES, SLOTS), -1, dtype=tl.int32)
    worst = tl.min(top, axis=1)
    peak = tl.full((CODES,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((CODES,), dtype=tl.float32)
    first = split * split_size
    last = tl.minimum(first + split_size, token_count)
    if DEPTH == PIECE:
        z_high = load_rows(z_high_ptr, first + places, last, depth, DEPTH)
        z_low = load_rows(z_low_ptr, first + places, last, depth, DEPTH)
    for start in range(first, last, TOKENS):
        columns = start + places
        here = columns < last
        if MASKED:
            here = here & (tl.load(valid + columns, mask=here, other=0) != 0)
        if DEPTH == PIECE:
            cosines = tl.zeros((CODES, TOKENS), dtype=tl.float32)
            cosines = add_split_products(code_high, code_low, tl.trans(z_high), tl.trans(z_low), cosines)
            z_high = load_rows(z_high_ptr, columns + TOKENS, last, depth, DEPTH)  # prefetch the next tile
            z_low = load_rows(z_low_ptr, columns + TOKENS, last, depth, DEPTH)
        else:
            cosines = split_row_scores(
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
        # While a token is nearer to some code than the worst of its top k, it replaces that one, which becomes a negative.
        best = tl.max(cosines, axis=1)
        while tl.max((best > worst).to(tl.int32), axis=0) > 0:
            better = best > worst
            at = tl.where(better, first_index_of(cosines, best, TOKENS), -1)
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
        # The rest of the tile are negatives.
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
    tl.store(negatives + at, _log_of_sum(peak, total), mask=inside)


@triton.jit(do_not_specialize=["code_count", "splits"])
def _merge_kernel(
    part_cosines,
    part_tokens,
    part_negatives,
    top_cosines,
    top_tokens,
    negatives,
    losses,
    pulled_tokens,
    top_pulls,
    pushes,
    code_count,
    splits,
    scale,
    cos_margin,
    sin_margin,
    smallest_sine,
    pull_scale,
    FINISH: tl.constexpr,
    MONOTONE: tl.constexpr,
    TOP: tl.constexpr,
    SLOTS: tl.constexpr,
    CODES: tl.constexpr,
    ENTRIES: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Merge the statistics of all parts of the tokens. A token in the top k of its part but not of all becomes a negative.

    FINISH: compute each code's loss and its `Pulls` as well.
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
        chosen = (entries[None, :] == first_index_of(cosines, best, ENTRIES)[:, None]) & (best > float("-inf"))[:, None]
        top = tl.where((slots == k)[None, :], best[:, None], top)
        token = tl.where((slots == k)[None, :], tl.max(tl.where(chosen, tokens, -1), axis=1)[:, None], token)
        cosines = tl.where(chosen, float("-inf"), cosines)
    place = rows[:, None].to(tl.int64) * TOP + slots[None, :]
    kept = inside[:, None] & (slots < TOP)[None, :]
    if not FINISH:
        tl.store(top_cosines + place, top, mask=kept)
        tl.store(top_tokens + place, token.to(tl.int64), mask=kept)
    left = base_two_exponent(scale) * cosines
    present = inside[:, None] & (parts < splits)[None, :]
    part = tl.load(
        part_negatives + rows[:, None].to(tl.int64) * splits + parts[None, :], mask=present, other=float("-inf")
    )
    part = base_two_exponent(part)
    peak = tl.maximum(tl.max(left, axis=1), tl.max(part, axis=1))
    shift = tl.where(peak == float("-inf"), 0.0, peak)
    total = tl.sum(tl.exp2(left - shift[:, None]), axis=1) + tl.sum(tl.exp2(part - shift[:, None]), axis=1)
    negative = _log_of_sum(shift, total)
    tl.store(negatives + rows, negative, mask=inside)
    if FINISH:
        loss, slopes, push = code_losses(top, token, negative, scale, cos_margin, sin_margin, smallest_sine, MONOTONE)
        tl.store(losses + rows, loss, mask=inside)
        across = slots[None, :] * code_count + rows[:, None]
        tl.store(pulled_tokens + across, token, mask=kept)
        tl.store(top_pulls + across, slopes * pull_scale, mask=kept)
        tl.store(pushes + rows, scale * push * pull_scale, mask=inside)


def statistics(
    latents: SplitRows,
    codes: SplitRows,
    valid: Tensor | None,
    scale: float,
    top_k: int,
    margin: Margin | None = None,
    tiling: Tiling | None = None,
    splits: int | None = None,
) -> tuple[Tensor, ...]:
    """Per code: the top cosines (K, k) in falling order, their tokens (K, k), log Σ exp(scale·cos) over the other tokens (K,).

    With a margin only the last of these, then each code's loss (K,) and its `Pulls`.
    """
    count, device = codes.count, codes.halves.device
    tiling = tiling or tiling_for("statistics", codes.count, codes.depth)
    programs = cdiv(codes.count, tiling.rows)
    if splits is None:
        splits = min(PROGRAMS // programs, MAX_ENTRIES // top_k)
    splits, split_size = split_into_parts(latents.count, tiling.columns, splits, min_blocks=2)
    parts = (
        torch.empty(count * splits, top_k, dtype=torch.float32, device=device),
        torch.empty(count * splits, top_k, dtype=torch.int32, device=device),
        torch.empty(count * splits, dtype=torch.float32, device=device),
    )
    launch(
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
            SPLIT_NORM,
        ),
        MASKED=valid is not None,
        TOP=top_k,
        SLOTS=next_power_of_two(top_k),
        CODES=tiling.rows,
        TOKENS=tiling.columns,
        DEPTH=codes.depth,
        PIECE=min(64, codes.depth),
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    negatives = torch.empty(count, dtype=torch.float32, device=device)
    unused = (negatives,) * 4
    tops = unused[:2] if margin else _empty_top_tokens(count, top_k, device)
    finished = (torch.empty_like(negatives), *Pulls.empty(count, top_k, device)) if margin else unused
    entries = next_power_of_two(splits * top_k)
    at_once = max(1, min(32, 2048 // entries))
    launch(
        _merge_kernel,
        (cdiv(count, at_once),),
        (),
        (
            *parts,
            *tops,
            negatives,
            *finished,
            count,
            splits,
            float(scale),
            *(margin.kernel_arguments if margin else (1.0, 0.0, 1.0)),
            LARGEST_PULL / margin.max_slope(scale) if margin else 0.0,
        ),
        FINISH=margin is not None,
        MONOTONE=margin is not None and margin.monotone,
        TOP=top_k,
        SLOTS=next_power_of_two(top_k),
        CODES=at_once,
        ENTRIES=entries,
        SPLITS=next_power_of_two(splits),
    )
    return (negatives, *finished) if margin else (*tops, negatives)


def _empty_top_tokens(codes: int, top_k: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Uninitialised top cosines (K, k) and top tokens (K, k) for a kernel to write."""
    return tuple(torch.empty(codes, top_k, dtype=kind, device=device) for kind in (torch.float32, torch.int64))  # type: ignore[return-value]
