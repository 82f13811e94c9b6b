"""Launches of the kernels of GroupNorm, alone or with SiLU, and of its gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from arcvq.functional.kernels import group_norm_kernels as kernels
from arcvq.functional.kernels.launches import cdiv, launch, next_power_of_two, split_into_parts

# Elements of a tile: with four warps two loads of 16 bytes per thread and input, in registers that leave room for many programs.
TILE = 2048
WARPS = 4
# Channels of a tile at most, so that a row of it is a few whole cache lines.
MAX_COLUMNS = 128
# Tiles that are read ahead of the one that is computed on.
STAGES = 3
# Programs of each pass over an image, several for each multiprocessor of a large GPU.
IMAGE_PROGRAMS = 2112
# Elements of a tile of a merging program: parts of the positions, times channels of a group.
MERGE_TILE = 1024
MAX_MERGE_COLUMNS = 32


def forward(
    x: Tensor,
    groups: int,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    silu: bool,
    offset: Tensor | None = None,
    splits: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """y like x (B, C, H, W), channels-last, and the groups' mean and 1/√(variance + eps), (B, groups) float32 both."""
    images, channels, positions, width = *x.shape[:2], x.shape[2] * x.shape[3], x.shape[1] // groups
    grid, splits, split_size, tile = _image_grid(images, positions, channels, splits)
    part_means, part_squares = (_float32(x, images * splits, channels) for _ in range(2))
    mean, inverse = (_float32(x, images, groups) for _ in range(2))
    y = torch.empty_like(x)
    sizes = positions, splits, split_size
    added = bias if offset is None else offset  # any tensor in the place of no offset
    flag = {"OFFSET": offset is not None}
    launch(
        kernels.moments_kernel,
        grid,
        (x, added, channels),
        (x, added, part_means, part_squares, *sizes, channels),
        **flag,
        **tile,
    )
    launch(
        kernels.merge_moments_kernel,
        (images * groups,),
        (channels, width),
        (part_means, part_squares, mean, inverse, *sizes, channels, width, eps),
        **_merge_tile(width),
    )
    launch(
        kernels.normalize_kernel,
        grid,
        (x, added, weight, bias, channels, width),
        (x, added, weight, bias, mean, inverse, y, *sizes, channels, width),
        SILU=silu,
        **flag,
        **tile,
    )
    return y, mean, inverse


def backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    inverse: Tensor,
    silu: bool,
    offset: Tensor | None = None,
    splits: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The gradients of x (channels-last, as grad), weight, bias and offset."""
    (images, groups), channels, positions = mean.shape, x.shape[1], x.shape[2] * x.shape[3]
    width = channels // groups
    grid, splits, split_size, tile = _image_grid(images, positions, channels, splits)
    sums, group_sums = _float32(x, 2, images * splits, channels), _float32(x, 2, images * groups)
    x_grad = torch.empty_like(x)
    offset_sums = group_sums if offset is None else _float32(x, images * splits, channels)
    inputs = grad, x, bias if offset is None else offset, weight, bias, mean, inverse
    options = {"SILU": silu, "OFFSET": offset is not None, **tile}
    launch(
        kernels.gradient_sums_kernel,
        grid,
        (*inputs, channels, width),
        (*inputs, sums, positions, splits, split_size, channels, width),
        **options,
    )
    launch(
        kernels.merge_sums_kernel,
        (images * groups,),
        (weight, channels, width),
        (sums, weight, group_sums, positions, splits, channels, width),
        **_merge_tile(width),
    )
    sizes = positions, splits, split_size, images * groups, channels, width
    launch(
        kernels.gradient_kernel,
        grid,
        (*inputs, channels, width),
        (*inputs, group_sums, x_grad, offset_sums, *sizes),
        **options,
    )
    bias_grad, weight_grad = (each.sum(dim=0) for each in sums)
    offset_grad = None if offset is None else offset_sums.sum(dim=0).to(offset.dtype)
    return x_grad, weight_grad.to(weight.dtype), bias_grad.to(bias.dtype), offset_grad


def _float32(x: Tensor, *shape: int) -> Tensor:
    """An uninitialised float32 tensor on the device of x."""
    return torch.empty(shape, dtype=torch.float32, device=x.device)


def _image_grid(
    images: int, positions: int, channels: int, splits: int | None
) -> tuple[tuple[int, int], int, int, dict[str, int]]:
    """The grid of a pass over all images, the number of parts of the positions, their size, and the tile's launch options."""
    columns = min(MAX_COLUMNS, next_power_of_two(channels))
    rows, tiles = TILE // columns, cdiv(channels, columns)
    if splits is None:
        splits = cdiv(IMAGE_PROGRAMS, images * tiles)
    splits, split_size = split_into_parts(positions, rows, splits, min_blocks=1)
    options = {"ROWS": rows, "COLUMNS": columns, "STAGES": STAGES, "num_warps": WARPS}
    return (images * splits, tiles), splits, split_size, options


def _merge_tile(width: int) -> dict[str, int]:
    """The launch options of a program that merges the parts of one group."""
    columns = min(MAX_MERGE_COLUMNS, next_power_of_two(width))
    return {"SPLITS": MERGE_TILE // columns, "COLUMNS": columns, "num_warps": 4}
