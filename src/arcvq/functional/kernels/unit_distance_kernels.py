"""The distance between two images' features after each position's were scaled to norm 1, and its gradient, in Triton.

The features are matrices (rows, channels), a row for each position, of which a program keeps whole ones. Arithmetic is float32, and a
row is read once in each pass. The interpreter (TRITON_INTERPRET=1) runs the kernels on a CPU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from arcvq.functional.kernels.launches import cdiv, launch, next_power_of_two

# Elements of a tile, or those of a row if it has more.
TILE, WARPS = 2048, 4


@triton.jit
def _load_rows(x, places, inside, epsilon):
    """Rows as float32, their norms, and 1 / (norm + epsilon)."""
    value = tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
    norm = tl.sqrt_rn(tl.sum(value * value, axis=1))
    return value, norm, tl.div_rn(1.0, norm + epsilon)


@triton.jit(do_not_specialize=["count"])
def distances_kernel(x, y, weights, distances, count, channels, epsilon, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The weighted sum over the channels of the squared differences of the scaled rows: distances (count,)."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    inside = (rows < count)[:, None] & (columns < channels)[None, :]
    places = rows[:, None] * channels + columns[None, :]
    one, _, one_scale = _load_rows(x, places, inside, epsilon)
    other, _, other_scale = _load_rows(y, places, inside, epsilon)
    weight = tl.load(weights + columns, mask=columns < channels, other=0.0).to(tl.float32)
    difference = one * one_scale[:, None] - other * other_scale[:, None]
    tl.store(distances + rows, tl.sum(difference * difference * weight[None, :], axis=1), mask=rows < count)


@triton.jit(do_not_specialize=["count", "positions"])
def gradient_kernel(
    grad, x, y, weights, x_grad, count, positions, channels, epsilon, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """The gradient of x; `grad` is that of each image's mean distance over its positions."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    inside = (rows < count)[:, None] & (columns < channels)[None, :]
    places = rows[:, None] * channels + columns[None, :]
    one, norm, one_scale = _load_rows(x, places, inside, epsilon)
    other, _, other_scale = _load_rows(y, places, inside, epsilon)
    weight = tl.load(weights + columns, mask=columns < channels, other=0.0).to(tl.float32)
    incoming = tl.load(grad + rows // positions, mask=rows < count, other=0.0) * (2.0 / positions.to(tl.float32))
    unit = one * one_scale[:, None]
    pull = (unit - other * other_scale[:, None]) * weight[None, :] * incoming[:, None]
    # The part along the row changes its norm only, which the scaling takes away; at a norm of 0 there is no such part.
    along = tl.where(norm > 0, tl.sum(pull * unit, axis=1) / norm, 0.0)
    value = pull * one_scale[:, None] - one * (along * one_scale)[:, None]
    tl.store(x_grad + places, value.to(x_grad.dtype.element_ty), mask=inside)


def distances(x: Tensor, y: Tensor, weights: Tensor, epsilon: float) -> Tensor:
    """The distance at each position of x and y (B, C, H, W), channels-last: (B · H · W,) float32."""
    count, channels, tile = _sizes(x)
    found = torch.empty(count, dtype=torch.float32, device=x.device)
    launch(
        distances_kernel,
        (cdiv(count, tile["ROWS"]),),
        (x, y, weights, channels),
        (x, y, weights, found, count, channels, epsilon),
        **tile,
    )
    return found


def gradient(grad: Tensor, x: Tensor, y: Tensor, weights: Tensor, epsilon: float) -> Tensor:
    """The gradient of x, for the gradient (B,) of each image's mean distance."""
    count, channels, tile = _sizes(x)
    x_grad = torch.empty_like(x)
    launch(
        gradient_kernel,
        (cdiv(count, tile["ROWS"]),),
        (grad, x, y, weights, channels),
        (grad, x, y, weights, x_grad, count, count // x.shape[0], channels, epsilon),
        **tile,
    )
    return x_grad


def _sizes(x: Tensor) -> tuple[int, int, dict[str, int]]:
    """Positions of all images, channels, and the tile's launch options."""
    columns = next_power_of_two(x.shape[1])
    return (
        x.numel() // x.shape[1],
        x.shape[1],
        {"ROWS": max(1, TILE // columns), "COLUMNS": columns, "num_warps": WARPS},
    )
