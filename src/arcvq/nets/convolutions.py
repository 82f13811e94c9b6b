"""Convolutions that a GPU computes several times faster as matrix products: those of images' few channels, and 1×1 ones; and one
whose bias a kernel adds.

A library's convolution pads three channels to eight and starves its tensor cores; here the sixteen pixels under a 4×4 window are the
channels instead. One product per image, so that the weights' gradient is a sum of many short products rather than one product whose
sum runs over the whole batch in a handful of blocks. The modules are PyTorch's own, weights and all, and do what those do wherever
they are not compiled for a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arcvq.functional import conv2d
from arcvq.functional.precision import compute_dtype, is_exporting, products_are_float32


class FeatureConv2d(nn.Conv2d):
    """A convolution of large feature maps, whose bias is added together with what else is: see functional.add_bias."""

    def __init__(self, channels: int, out: int, kernel_size: int, stride: int = 1, padding: int = 0) -> None:
        super().__init__(channels, out, kernel_size, stride, padding)

    def forward(self, x: Tensor, other: Tensor | None = None, *, with_bias: bool = True) -> Tensor:
        """The convolution of x, with `other` added; without its bias for a GroupNorm that adds that."""
        bias = self.bias if with_bias else None
        return conv2d(x, self.weight, bias, self.stride, self.padding, other=other)


class WindowConv2d(nn.Conv2d):
    """A 4×4 convolution of stride 2: (B, C, 2h, 2w) → (B, out, h, w)."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__(channels, out, 4, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return window_conv(x, self.weight, self.bias) if _use_matmul(x) else super().forward(x)


class WindowConvTranspose2d(nn.ConvTranspose2d):
    """A transposed 4×4 convolution of stride 2: (B, C, h, w) → (B, out, 2h, 2w)."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__(channels, out, 4, stride=2, padding=1)

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        products = output_size is None and _use_matmul(x)
        return window_conv_transpose(x, self.weight, self.bias) if products else super().forward(x, output_size)


class PointConv2d(nn.Conv2d):
    """A 1×1 convolution: (B, C, h, w) → (B, out, h, w)."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__(channels, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        return point_conv(x, self.weight, self.bias) if _use_matmul(x) else super().forward(x)


def _use_matmul(x: Tensor) -> bool:
    """True when compiled for a GPU; uncompiled, cutting an image into windows takes several passes over it. False where products are
    TensorFloat-32: convolutions have a switch of their own for that."""
    return x.is_cuda and torch.compiler.is_compiling() and not is_exporting() and products_are_float32()


def window_conv(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """weight (out, C, 4, 4): each window's pixels by the weights."""
    return _product(_windows(x.permute(0, 2, 3, 1)), weight.permute(2, 3, 1, 0).flatten(0, 2), bias)


def window_conv_transpose(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """weight (C, out, 4, 4): each place's window of the image, and the windows laid over each other."""
    windows = _product(x.permute(0, 2, 3, 1), weight.permute(0, 2, 3, 1).flatten(1), None)  # (B, 16·out, h, w)
    image = _Overlay.apply(windows.permute(0, 2, 3, 1))  # (B, 2h, 2w, out)
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


def _windows(image: Tensor) -> Tensor:
    """(B, 2h, 2w, C) → (B, h, w, 16·C): the 4×4 windows at every other pixel, the outermost a pixel beyond the edges."""
    windows = F.pad(image, (0, 0, 1, 1, 1, 1)).unfold(1, 4, 2).unfold(2, 4, 2)  # (B, h, w, C, 4, 4)
    return windows.movedim(3, 5).flatten(3)


class _Overlay(torch.autograd.Function):
    """(B, h, w, 16·C) → (B, 2h, 2w, C): windows laid over each other, added in float32. The transpose of `_windows`."""

    @staticmethod
    def forward(windows: Tensor) -> Tensor:
        batch, height, width, channels = (*windows.shape[:3], windows.shape[3] // 16)
        places = windows.to(compute_dtype(windows)).view(batch, height, width, 4, 4, channels).transpose(2, 3)
        return _lay(_lay(places.reshape(batch, 4 * height, 4 * width, channels), 1), 2)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.dtype = inputs[0].dtype

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _windows(grads[0].to(ctx.dtype))


def _lay(places: Tensor, axis: int) -> Tensor:
    """Windows of four places each, one behind the other along `axis`, laid over each other: 4n → 2n.

    Window i begins at place 2i − 1, so that places 2i and 2i + 1 are its second and third, the last of the window before and the
    first of the one after.
    """
    beyond = [0, 0] * (places.dim() - 1 - axis) + [1, 1]
    around = F.pad(places, beyond).unfold(axis, 6, 4)  # each window between two places of its neighbours
    return (around[..., 2:4] + around[..., ::5]).movedim(-1, axis + 1).flatten(axis, axis + 1)
