"""Twice as many pixels, or half as many, on each side."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arcvq.functional.precision import without_autocast


class Upsample2x(nn.Module):
    """(B, C, h, w) → (B, C, 2h, 2w), nearest neighbour. The compiler turns the gradient of interpolate into a scatter; that of this
    into a sum."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            with without_autocast(x):  # which would copy the pixels as float32
                return F.interpolate(x, scale_factor=2.0, mode="nearest")
        batch, channels, height, width = x.shape
        repeated = x[:, :, :, None, :, None].expand(-1, -1, -1, 2, -1, 2)
        return repeated.reshape(batch, channels, 2 * height, 2 * width)
