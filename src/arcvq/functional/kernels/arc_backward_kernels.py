"""The ArcLoss's gradient for CUDA, in Triton: the score matrix is computed again, tile by tile in registers. There are no atomics, so
it is deterministic. The interpreter (TRITON_INTERPRET=1) runs it on a CPU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from arcvq.functional.kernels.arc_finish_kernels import LARGEST_PULL, Pulls, base_two_exponent
from arcvq.functional.kernels.launches import PROGRAMS, cdiv, launch, split_into_parts
from arcvq.functional.kernels.row_kernels import (
    SPLIT_NORM,
    SplitRows,
    add_split_products,
    load_rows,
    low_half_pointer,
    split_row_scores,
)
from arcvq.functional.kernels.tilings import Tiling, tiling_for

# Elements at most of all partial gradients together.
MAX_PARTIAL_ELEMENTS = 2**23


@triton.jit
def _truncate_to_float16(x):
    """The float32 number cut to float16's eleven leading bits."""
    return (x.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["code_count"])
def _scale_pulls_kernel(
    top_tokens,
    grad_top,
    grad_negatives,
    largest,
    pulled_tokens,
    top_pulls,
    pushes,
    code_count,
    scale,
    largest_pull,
    TOP: tl.constexpr,
    CODES: tl.constexpr,
):
    """The gradients of the statistics as `Pulls`, scaled so that the largest is `largest_pull`."""
    rows = tl.program_id(0) * CODES + tl.arange(0, CODES)
    inside = rows < code_count
    maximum = tl.load(largest)
    factor = tl.where(maximum > 0, largest_pull / tl.where(maximum > 0, maximum, 1.0), 0.0)
    tl.store(pushes + rows, scale * factor * tl.load(grad_negatives + rows, mask=inside, other=0.0), mask=inside)
    for k in tl.static_range(TOP):
        at = rows.to(tl.int64) * TOP + k
        place = k * code_count + rows
        tl.store(pulled_tokens + place, tl.load(top_tokens + at, mask=inside, other=-1).to(tl.int32), mask=inside)
        tl.store(top_pulls + place, factor * tl.load(grad_top + at, mask=inside, other=0.0), mask=inside)


@triton.jit(do_not_specialize=["token_count", "code_count", "split_size"])
def _backward_kernel(
    z_high_ptr,
    c_high_ptr,
    negatives,
    pulled_tokens,
    top_pulls,
    pushes,
    latents,
    inverse_latents,
    valid,
    upstream,
    gradients,
    token_count,
    code_count,
    width,
    split_size,
    scale,
    split_norm,
    gradient_scale,
    MASKED: tl.constexpr,
    TOP: tl.constexpr,
    TOKENS: tl.constexpr,
    CODES: tl.constexpr,
    DEPTH: tl.constexpr,
    PIECE: tl.constexpr,
    OUT: tl.constexpr,
    FINAL: tl.constexpr,
    HAS_UPSTREAM: tl.constexpr,
):
    """The gradient of the unit latents from one part of the codes, times SPLIT_NORM and the scale of the pulls: tile by tile the
    gradient of the cosines is computed and multiplied with the codes.

    FINAL: there is only one part and one piece; the gradient is taken through the normalisation, too.
    """
    scale = base_two_exponent(scale) / (split_norm * split_norm)
    first = tl.program_id(0) * TOKENS
    rows = first + tl.arange(0, TOKENS)
    out = tl.program_id(1) * OUT + tl.arange(0, OUT)
    split = tl.program_id(2)
    z_low_ptr = low_half_pointer(z_high_ptr, token_count, DEPTH)
    c_low_ptr = low_half_pointer(c_high_ptr, code_count, DEPTH)
    u_high = load_rows(z_high_ptr, rows, token_count, tl.arange(0, PIECE), DEPTH)
    u_low = load_rows(z_low_ptr, rows, token_count, tl.arange(0, PIECE), DEPTH)
    gradient = tl.zeros((TOKENS, OUT), dtype=tl.float32)
    last = tl.minimum((split + 1) * split_size, code_count)
    for start in range(split * split_size, last, CODES):
        columns = start + tl.arange(0, CODES)
        inside = columns < last
        code_high = load_rows(c_high_ptr, columns, last, out, DEPTH)
        code_low = load_rows(c_low_ptr, columns, last, out, DEPTH)
        if DEPTH == PIECE:
            cosines = tl.zeros((TOKENS, CODES), dtype=tl.float32)
            cosines = add_split_products(u_high, u_low, tl.trans(code_high), tl.trans(code_low), cosines)
        else:
            cosines = split_row_scores(
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
        # d/dcos of the negatives' log-sum-exp is s·softmax; a code without negatives has log-sum-exp −inf and gradient 0.
        negative = tl.load(negatives + columns, mask=inside, other=float("-inf"))
        negative = tl.where(negative > float("-inf"), base_two_exponent(negative), float("inf"))
        push = tl.load(pushes + columns, mask=inside, other=0.0)
        weights = tl.exp2(scale * cosines - negative[None, :]) * push[None, :]
        # Top tokens of these codes get their own gradient, if any of them is among these rows.
        hit = columns < 0
        for k in tl.static_range(TOP):
            chosen = tl.load(pulled_tokens + k * code_count + columns, mask=inside, other=-1)
            hit = hit | ((chosen >= first) & (chosen < first + TOKENS))
        if tl.max(hit.to(tl.int32), axis=0) > 0:
            for k in tl.static_range(TOP):
                chosen = tl.load(pulled_tokens + k * code_count + columns, mask=inside, other=-1)
                pull = tl.load(top_pulls + k * code_count + columns, mask=inside, other=0.0)
                weights = tl.where(rows[:, None] == chosen[None, :], pull[None, :], weights)
        weights_high = _truncate_to_float16(weights)
        weights_low = (weights - weights_high).to(tl.float16)
        gradient = add_split_products(weights_high.to(tl.float16), weights_low, code_high, code_low, gradient)
    if FINAL:
        here = rows < token_count
        inverse = tl.load(inverse_latents + rows, mask=here, other=0.0)
        if MASKED:
            here = here & (tl.load(valid + rows, mask=here, other=0) != 0)
        u = load_rows(latents, rows, token_count, out, width).to(tl.float32) * inverse[:, None]
        along = _radial_component(tl.sum(gradient * u, axis=1), tl.sum(u * u, axis=1))
        factor = gradient_scale * tl.load(upstream) if HAS_UPSTREAM else gradient_scale
        gradient = (gradient - u * along[:, None]) * (inverse * factor)[:, None]
        gradient = tl.where(here[:, None], gradient, 0.0)
    place = (split.to(tl.int64) * token_count + rows)[:, None] * width + out[None, :]
    tl.store(gradients + place, gradient, mask=(rows < token_count)[:, None] & (out < width)[None, :])


@triton.jit
def _radial_component(product, square):
    """The part of a gradient along its unit row, which the gradient of z/‖z‖ lacks; 0 for zero rows, which were divided by 1."""
    return tl.where(square > 0.5, product, 0.0)


@triton.jit(do_not_specialize=["token_count", "splits"])
def _project_kernel(
    latents,
    inverse_latents,
    valid,
    upstream,
    gradients,
    gradient,
    token_count,
    width,
    splits,
    gradient_scale,
    MASKED: tl.constexpr,
    TOKENS: tl.constexpr,
    DEPTH: tl.constexpr,
    HAS_UPSTREAM: tl.constexpr,
):
    """The gradient of the latents: partial gradients of the unit latents summed, then taken through the normalisation."""
    rows = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    here = rows < token_count
    inverse = tl.load(inverse_latents + rows, mask=here, other=0.0)
    if MASKED:
        here = here & (tl.load(valid + rows, mask=here, other=0) != 0)
    along = tl.zeros((TOKENS,), dtype=tl.float32)
    square = tl.zeros((TOKENS,), dtype=tl.float32)
    for start in range(0, width, DEPTH):
        depth = start + tl.arange(0, DEPTH)
        z = load_rows(latents, rows, token_count, depth, width).to(tl.float32) * inverse[:, None]
        g = _sum_of_parts(gradients, rows, depth, token_count, width, splits, TOKENS, DEPTH)
        along += tl.sum(g * z, axis=1)
        square += tl.sum(z * z, axis=1)
    along = _radial_component(along, square)
    factor = inverse * (gradient_scale * tl.load(upstream) if HAS_UPSTREAM else gradient_scale)
    for start in range(0, width, DEPTH):
        depth = start + tl.arange(0, DEPTH)
        z = load_rows(latents, rows, token_count, depth, width).to(tl.float32) * inverse[:, None]
        g = _sum_of_parts(gradients, rows, depth, token_count, width, splits, TOKENS, DEPTH)
        g = tl.where(here[:, None], (g - z * along[:, None]) * factor[:, None], 0.0)
        tl.store(
            gradient + rows[:, None].to(tl.int64) * width + depth[None, :],
            g,
            mask=(rows < token_count)[:, None] & (depth < width)[None, :],
        )


@triton.jit
def _sum_of_parts(parts, rows, depth, row_count, width, splits, ROWS: tl.constexpr, DEPTH: tl.constexpr):
    """The sum over `splits` partial matrices of one tile (rows, depth)."""
    total = tl.zeros((ROWS, DEPTH), dtype=tl.float32)
    for split in range(splits):
        total += load_rows(parts, split * row_count + rows, (split + 1) * row_count, depth, width)
    return total


def scale_pulls(top_tokens: Tensor, grad_top: Tensor, grad_negatives: Tensor, scale: float) -> tuple[Pulls, Tensor]:
    """The gradients of the statistics, scaled to fit float16 (largest: LARGEST_PULL), and the largest before (a scalar tensor)."""
    codes, top_k = top_tokens.shape
    largest = torch.maximum(grad_top.abs().amax(), scale * grad_negatives.abs().amax())
    pulls = Pulls.empty(codes, top_k, largest.device)
    _scale_pulls_kernel[(cdiv(codes, 128),)](
        top_tokens, grad_top, grad_negatives, largest, *pulls, codes, scale, LARGEST_PULL, TOP=top_k, CODES=128
    )
    return pulls, largest


def backward(
    latents: Tensor,
    split_latents: SplitRows,
    codes: SplitRows,
    valid: Tensor | None,
    negatives: Tensor,
    pulls: Pulls,
    upstream: Tensor | None,
    gradient_scale: float,
    scale: float,
    tiling: Tiling | None = None,
    splits: int | None = None,
) -> Tensor:
    """The ArcLoss's gradient in the latents (N, D), from its pulls, times upstream · gradient_scale / LARGEST_PULL.

    It has the latents' dtype. Without `upstream`, the gradient of the loss, it is float32: it may be too small for half precision.
    """
    (count, width), device = latents.shape, latents.device
    dtype = torch.float32 if upstream is None else latents.dtype
    gradient = torch.empty(count, width, dtype=dtype, device=device)
    if not count:
        return gradient
    tiling = tiling or tiling_for("backward", codes.count, codes.depth)
    programs = cdiv(count, tiling.rows)
    if splits is None:
        splits = min(MAX_PARTIAL_ELEMENTS // (count * width), 16 * PROGRAMS // programs)
    splits, split_size = split_into_parts(codes.count, tiling.columns, splits, min_blocks=32)
    out = min(64, codes.depth)
    final = splits == 1 and out == codes.depth
    parts = gradient if final else torch.empty(splits, count, width, dtype=torch.float32, device=device)
    mask = latents if valid is None else valid
    upstream_or_any = latents if upstream is None else upstream
    gradient_scale /= LARGEST_PULL * SPLIT_NORM
    launch(
        _backward_kernel,
        (programs, codes.depth // out, splits),
        (
            latents,
            mask,
            upstream_or_any,
            split_latents.halves,
            split_latents.inverse,
            codes.halves,
            negatives,
            *pulls,
            width,
        ),
        (
            split_latents.halves,
            codes.halves,
            negatives,
            *pulls,
            latents,
            split_latents.inverse,
            mask,
            upstream_or_any,
            parts,
            count,
            codes.count,
            width,
            split_size,
            float(scale),
            SPLIT_NORM,
            gradient_scale,
        ),
        MASKED=valid is not None,
        TOP=pulls.pulled_tokens.shape[0],
        TOKENS=tiling.rows,
        CODES=tiling.columns,
        DEPTH=codes.depth,
        PIECE=out,
        OUT=out,
        FINAL=final,
        HAS_UPSTREAM=upstream is not None,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    if not final:
        _project_kernel[(cdiv(count, 32),)](
            latents,
            split_latents.inverse,
            mask,
            upstream_or_any,
            parts,
            gradient,
            count,
            width,
            splits,
            gradient_scale,
            MASKED=valid is not None,
            TOKENS=32,
            DEPTH=out,
            HAS_UPSTREAM=upstream is not None,
        )
    return gradient
