"""The Triton kernels of GroupNorm for autograd: PyTorch operators while a graph is traced, direct calls in eager mode.

The backward pass keeps the input and the groups' statistics, and computes normalised values and SiLU again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from arcvq.functional.kernels.calls import on_device, without_second_derivative

Triple = tuple[Tensor, Tensor, Tensor]


def group_norm(x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float, silu: bool) -> Tensor:
    """GroupNorm of (B, C, H, W), with `silu` followed by SiLU; a channels-last result in x's dtype."""
    if torch.compiler.is_compiling():
        return _group_norm_operator(x, groups, weight, bias, eps, silu)[0]
    y: Tensor = _GroupNorm.apply(x, groups, weight, bias, eps, silu)
    return y


@on_device
def _group_norm(x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float, silu: bool) -> Triple:
    """The result, and the groups' mean and 1/√(variance + eps)."""
    from arcvq.functional.kernels import group_norm_kernels

    return group_norm_kernels.forward(_channels_last(x), groups, weight.contiguous(), bias.contiguous(), eps, silu)


@on_device
def _group_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, inverse: Tensor, silu: bool
) -> Triple:
    """The gradients of x, weight and bias."""
    from arcvq.functional.kernels import group_norm_kernels

    grad, x = _channels_last(grad), _channels_last(x)
    return group_norm_kernels.backward(grad, x, weight.contiguous(), bias.contiguous(), mean, inverse, silu)


def _channels_last(x: Tensor) -> Tensor:
    """x in the layout that the kernels read; a copy only if it has another."""
    return x.contiguous(memory_format=torch.channels_last)


class _GroupNorm(torch.autograd.Function):
    """GroupNorm in eager mode."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        """The result; saves the input, not the result."""
        x, _, weight, bias, _, ctx.silu = arguments
        y, mean, inverse = _group_norm(*arguments)
        ctx.save_for_backward(x, weight, bias, mean, inverse)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The gradients of x, weight and bias."""
        x, weight, bias, mean, inverse = ctx.saved_tensors
        gradients = _group_norm_backward(grads[0], x, weight, bias, mean, inverse, ctx.silu)
        x_grad, weight_grad, bias_grad = (without_second_derivative(each, "GroupNorm") for each in gradients)
        return x_grad, None, weight_grad, bias_grad, None, None


_group_norm_operator = torch.library.custom_op("arcvq::fused_group_norm", _group_norm, mutates_args=())
_group_norm_backward_operator = torch.library.custom_op(
    "arcvq::fused_group_norm_backward", _group_norm_backward, mutates_args=()
)


@_group_norm_operator.register_fake
def _empty_outputs(x: Tensor, groups: int, *_: Any) -> Triple:
    """Uninitialised outputs of `_group_norm`, for tracing."""
    mean, inverse = (x.new_empty(x.shape[0], groups, dtype=torch.float32) for _ in range(2))
    return torch.empty_like(x, memory_format=torch.channels_last), mean, inverse


@_group_norm_backward_operator.register_fake
def _empty_gradients(grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, *_: Any) -> Triple:
    """Uninitialised gradients, for tracing."""
    gradient = torch.empty_like(x, memory_format=torch.channels_last)
    return gradient, torch.empty_like(weight.contiguous()), torch.empty_like(bias.contiguous())


def _group_norm_setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    x, _, weight, bias, _, ctx.silu = inputs
    _, mean, inverse = output
    ctx.mark_non_differentiable(mean, inverse)
    ctx.save_for_backward(x, weight, bias, mean, inverse)


def _group_norm_gradient(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    x, weight, bias = _group_norm_backward_operator(grad, *ctx.saved_tensors, ctx.silu)
    return x, None, weight, bias, None, None


_group_norm_operator.register_autograd(_group_norm_gradient, setup_context=_group_norm_setup_context)
