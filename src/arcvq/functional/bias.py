"""Convolutions whose bias is added in one pass with what else is added there.

A convolution of cuDNN's has no bias: PyTorch adds it afterwards and sums its gradient in kernels that are slow on channels-last images.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from arcvq.errors import ArcvqError
from arcvq.functional.chunks import Backend, choose_backend
from arcvq.functional.kernels.calls import on_device
from arcvq.functional.layout import memory_format_of


def add_bias(x: Tensor, bias: Tensor, other: Tensor | None = None, *, backend: Backend = "auto") -> Tensor:
    """x (B, C, H, W) + bias (C,) + other, which is shaped like x; in x's dtype. `triton`: CUDA, channels-last."""
    if x.dim() != 4 or bias.shape != x.shape[1:2]:
        raise ArcvqError(
            f"add_bias takes images (B, C, H, W) and a bias (C,), got {tuple(x.shape)} and {tuple(bias.shape)}"
        )
    other = _like(x, other)
    if uses_kernels(x, backend):
        found: Tensor = _AddBias.apply(x, bias, other)
        return found
    y = x + bias.to(x.dtype)[:, None, None]
    return y if other is None else y + other


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] | str = 0,
    *,
    other: Tensor | None = None,
) -> Tensor:
    """torch's convolution, with `other`, which is shaped like the result, added to it; the bias by `add_bias` where that has kernels."""
    if bias is not None and uses_kernels(x):
        return add_bias(F.conv2d(x, weight, None, stride, padding), bias, other)
    y = F.conv2d(x, weight, bias, stride, padding)
    other = _like(y, other)
    return y if other is None else other + y


def _like(x: Tensor, other: Tensor | None) -> Tensor | None:
    """What is added to x, in x's dtype. Raises if it has another shape."""
    if other is not None and other.shape != x.shape:
        raise ArcvqError(f"expected other images of shape {tuple(x.shape)}, got {tuple(other.shape)}")
    return None if other is None else other.to(x.dtype)


def uses_kernels(x: Tensor, backend: Backend = "auto") -> bool:
    """Whether `add_bias` launches kernels for x. A compiler fuses the plain sum by itself."""
    usable = choose_backend(backend, x) == "triton" and memory_format_of(x) == torch.channels_last and x.numel() > 0
    return usable and not torch.compiler.is_compiling()


@on_device
def _add(x: Tensor, bias: Tensor, other: Tensor | None) -> Tensor:
    from arcvq.functional.kernels import bias_kernels

    other = None if other is None else other.contiguous(memory_format=torch.channels_last)
    return bias_kernels.add(x.contiguous(memory_format=torch.channels_last), bias.contiguous(), other)


@on_device
def _column_sums(x: Tensor) -> Tensor:
    from arcvq.functional.kernels import bias_kernels

    return bias_kernels.column_sums(x.contiguous(memory_format=torch.channels_last))


class _AddBias(torch.autograd.Function):
    """x + bias + other by the kernels."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        x, bias, other = arguments
        ctx.bias_dtype = bias.dtype
        return _add(x, bias, other)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        needs_x, needs_bias, needs_other = ctx.needs_input_grad
        sums = None
        if needs_bias:  # plain where it is differentiated once more
            sums = (grad.float().sum((0, 2, 3)) if torch.is_grad_enabled() else _column_sums(grad)).to(ctx.bias_dtype)
        return grad if needs_x else None, sums, grad if needs_other else None
