"""The ArcLoss's gradient for CUDA, in Triton: the score matrix is made again tile by tile, in registers, and no atomics add up what
comes of it. The interpreter (TRITON_INTERPRET=1) runs it on a CPU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from arcvq.functional.arc_finish_kernels import ROOM, Pulls, powers_of_two
from arcvq.functional.launches import PROGRAMS, cdiv, launch, split_into_parts
from arcvq.functional.row_kernels import LENGTH, Rows, add_products, load_rows, lower_halves, row_scores
from arcvq.functional.tilings import Tiling, tiling_for

# Elements of all the parts of a gradient together.
LARGEST_PARTS = 2**23


@triton.jit
def _high(x):
    """The eleven leading bits of a float32, which half precision holds."""
    return (x.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)


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
    scale = powers_of_two(scale) / (length * length)
    first = tl.program_id(0) * TOKENS
    rows = first + tl.arange(0, TOKENS)
    out = tl.program_id(1) * OUT + tl.arange(0, OUT)
    split = tl.program_id(2)
    z_low_ptr = lower_halves(z_high_ptr, token_count, DEPTH)
    c_low_ptr = lower_halves(c_high_ptr, code_count, DEPTH)
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
            cosines = add_products(u_high, u_low, tl.trans(code_high), tl.trans(code_low), cosines)
        else:
            cosines = row_scores(
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
        negative = tl.where(negative > float("-inf"), powers_of_two(negative), float("inf"))
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
        gradient = add_products(weights_high.to(tl.float16), weights_low, code_high, code_low, gradient)
    if FINAL:
        here = rows < token_count
        inverse = tl.load(inverse_latents + rows, mask=here, other=0.0)
        if MASKED:
            here = here & (tl.load(valid + rows, mask=here, other=0) != 0)
        u = load_rows(latents, rows, token_count, out, width).to(tl.float32) * inverse[:, None]
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
        z = load_rows(latents, rows, token_count, depth, width).to(tl.float32) * inverse[:, None]
        g = _sum_of_parts(gradients, rows, depth, token_count, width, splits, TOKENS, DEPTH)
        along += tl.sum(g * z, axis=1)
        square += tl.sum(z * z, axis=1)
    along = _along(along, square)
    factor = inverse * (shrink * tl.load(stretch) if STRETCHED else shrink)
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
    total = tl.zeros((ROWS, DEPTH), dtype=tl.float32)
    for split in range(splits):
        total += load_rows(parts, split * row_count + rows, (split + 1) * row_count, depth, width)
    return total


def pulls_of(top_tokens: Tensor, grad_top: Tensor, grad_negatives: Tensor, scale: float) -> tuple[Pulls, Tensor]:
    """Any gradients of the statistics as pulls, and what they were divided by (a scalar tensor)."""
    codes, top_k = top_tokens.shape
    largest = torch.maximum(grad_top.abs().amax(), scale * grad_negatives.abs().amax())
    pulls = Pulls.empty(codes, top_k, largest.device)
    _pull_kernel[(cdiv(codes, 128),)](
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
    programs = cdiv(count, tiling.rows)
    if splits is None:
        splits = min(LARGEST_PARTS // (count * width), 16 * PROGRAMS // programs)
    splits, split_size = split_into_parts(codes.count, tiling.columns, splits, min_blocks=32)
    out = min(64, codes.depth)
    final = splits == 1 and out == codes.depth
    parts = gradient if final else torch.empty(splits, count, width, dtype=torch.float32, device=device)
    mask = latents if valid is None else valid
    stretched = latents if stretch is None else stretch
    shrink /= ROOM * LENGTH
    launch(
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
        _project_kernel[(cdiv(count, 32),)](
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
