"""Twice as many pixels, or half as many, on each side."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arcvq.functional.layout import memory_format_of
from arcvq.functional.precision import without_autocast


class Upsample2x(nn.Module):
    """(B, C, h, w) → (B, C, 2h, 2w), nearest neighbour, in the memory layout of x.

    Compiled or on a GPU by repetition: the compiler turns the gradient of interpolate into a scatter, and interpolate's own kernels are
    slow on channels-last images.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda or torch.compiler.is_compiling():
            return _repeat_channels_last(x) if memory_format_of(x) == torch.channels_last else _repeat(x)
        with without_autocast(x):  # which would copy the pixels as float32
            return F.interpolate(x, scale_factor=2.0, mode="nearest")


def _repeat(x: Tensor) -> Tensor:
    batch, channels, height, width = x.shape
    repeated = x[:, :, :, None, :, None].expand(-1, -1, -1, 2, -1, 2)
    return repeated.reshape(batch, channels, 2 * height, 2 * width)


def _repeat_channels_last(x: Tensor) -> Tensor:
    batch, channels, height, width = x.shape
    repeated = x.permute(0, 2, 3, 1)[:, :, None, :, None].expand(-1, -1, 2, -1, 2, -1)
    return repeated.reshape(batch, 2 * height, 2 * width, channels).permute(0, 3, 1, 2)
