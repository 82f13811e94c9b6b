"""Convolutions that a GPU computes several times faster as matrix products: those of images' few channels, and 1×1 ones.

A library's convolution pads three channels to eight and starves its tensor cores; here the sixteen pixels under a 4×4 window are the
channels instead. One product per image, so that the weights' gradient is a sum of many short products rather than one product whose
sum runs over the whole batch in a handful of blocks. The modules are PyTorch's own, weights and all, and on a CPU they do
what those do.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arcvq.functional.precision import compute_dtype


class WindowConv2d(nn.Conv2d):
    """A 4×4 convolution of stride 2: (B, C, 2h, 2w) → (B, out, h, w)."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__(channels, out, 4, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return window_conv(x, self.weight, self.bias) if x.is_cuda else super().forward(x)


class WindowConvTranspose2d(nn.ConvTranspose2d):
    """A transposed 4×4 convolution of stride 2: (B, C, h, w) → (B, out, 2h, 2w)."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__(channels, out, 4, stride=2, padding=1)

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        products = x.is_cuda and output_size is None
        return window_conv_transpose(x, self.weight, self.bias) if products else super().forward(x, output_size)


class PointConv2d(nn.Conv2d):
    """A 1×1 convolution: (B, C, h, w) → (B, out, h, w)."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__(channels, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        return point_conv(x, self.weight, self.bias) if x.is_cuda else super().forward(x)


def window_conv(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """weight (out, C, 4, 4): each window's pixels by the weights."""
    windows = F.pad(x, (1, 1, 1, 1)).unfold(2, 4, 2).unfold(3, 4, 2)  # (B, C, h, w, 4, 4)
    rows = windows.permute(0, 2, 3, 1, 4, 5).flatten(3)  # (B, h, w, C·16)
    return _product(rows, weight.flatten(1).T, bias)


def window_conv_transpose(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """weight (C, out, 4, 4): each place's window of the image, and the windows laid over each other."""
    batch, _, height, width = x.shape
    windows = _product(x.permute(0, 2, 3, 1), weight.flatten(1), None).permute(0, 2, 3, 1)  # (B, h, w, out·16)
    windows = windows.to(compute_dtype(windows)).reshape(batch, height, width, weight.shape[1], 4, 4)
    image = _lay(_lay(windows.movedim(4, -1), 1), 2)  # along the rows, then along the columns: (B, 2h, 2w, out)
    return (image if bias is None else image + bias).permute(0, 3, 1, 2)


def point_conv(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """weight (out, C, 1, 1): each place's channels by the weights."""
    return _product(x.permute(0, 2, 3, 1), weight.flatten(1).T, bias)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(B, h, w, C) by (C, out) → (B, out, h, w), the channels last in memory."""
    batch, height, width, channels = x.shape
    rows = torch.bmm(x.reshape(batch, height * width, channels), weight.expand(batch, -1, -1))
    y = rows.view(batch, height, width, weight.shape[1])
    return (y if bias is None else y + bias.to(y.dtype)).permute(0, 3, 1, 2)


def _lay(windows: Tensor, axis: int) -> Tensor:
    """Windows of four places, two apart along `axis` and their places last, laid over each other: n windows reach 2n places.

    Window i covers the places 2i − 1 to 2i + 2, of which the first and the last of all fall outside.
    """
    count = windows.shape[axis]
    outside = torch.zeros_like(windows.narrow(axis, 0, 1))
    padded = torch.cat((outside, windows, outside), axis)
    before, here, after = (padded.narrow(axis, i, count) for i in range(3))
    even, odd = here[..., 1] + before[..., 3], here[..., 2] + after[..., 0]
    return torch.stack((even, odd), axis + 1).flatten(axis, axis + 1)
