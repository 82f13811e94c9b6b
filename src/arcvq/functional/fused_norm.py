"""The Triton kernels of GroupNorm for autograd: PyTorch operators while a graph is traced, direct calls in eager mode.

The backward pass keeps the input and the groups' statistics, and computes normalised values and SiLU again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from arcvq.functional.kernels.calls import on_device, without_second_derivative

Triple = tuple[Tensor, Tensor, Tensor]


def group_norm(
    x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float, silu: bool, offset: Tensor | None = None
) -> Tensor:
    """GroupNorm of x (B, C, H, W), or of x + offset, with `silu` followed by SiLU; a channels-last result in x's dtype."""
    if torch.compiler.is_compiling():
        return _group_norm_operator(x, groups, weight, bias, eps, silu, offset)[0]
    y: Tensor = _GroupNorm.apply(x, groups, weight, bias, eps, silu, offset)
    return y


@on_device
def _group_norm(
    x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float, silu: bool, offset: Tensor | None
) -> Triple:
    """The result, and the groups' mean and 1/√(variance + eps)."""
    from arcvq.functional.kernels import group_norm_launches

    weight, bias, offset = weight.contiguous(), bias.contiguous(), None if offset is None else offset.contiguous()
    return group_norm_launches.forward(_channels_last(x), groups, weight, bias, eps, silu, offset)


@on_device
def _group_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    inverse: Tensor,
    silu: bool,
    offset: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x, weight, bias and offset; an empty one without offset."""
    from arcvq.functional.kernels import group_norm_launches

    grad, x = _channels_last(grad), _channels_last(x)
    weight, bias, offset = weight.contiguous(), bias.contiguous(), None if offset is None else offset.contiguous()
    found = group_norm_launches.backward(grad, x, weight, bias, mean, inverse, silu, offset)
    return *found[:3], x.new_empty(0) if found[3] is None else found[3]


def _channels_last(x: Tensor) -> Tensor:
    """x in the layout that the kernels read; a copy only if it has another."""
    return x.contiguous(memory_format=torch.channels_last)


class _GroupNorm(torch.autograd.Function):
    """GroupNorm in eager mode."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        """The result; saves the input, not the result."""
        x, _, weight, bias, _, ctx.silu, offset = arguments
        y, mean, inverse = _group_norm(*arguments)
        ctx.save_for_backward(x, weight, bias, mean, inverse, offset)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The gradients of x, weight, bias and offset."""
        x, weight, bias, mean, inverse, offset = ctx.saved_tensors
        gradients = _group_norm_backward(grads[0], x, weight, bias, mean, inverse, ctx.silu, offset)
        x, weight, bias, shift = (without_second_derivative(each, "GroupNorm") for each in gradients)
        return x, None, weight, bias, None, None, None if offset is None else shift


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
def _empty_gradients(grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Uninitialised gradients, for tracing."""
    gradient = torch.empty_like(x, memory_format=torch.channels_last)
    offset_grad = x.new_empty(0) if rest[-1] is None else torch.empty_like(rest[-1].contiguous())
    return gradient, torch.empty_like(weight.contiguous()), torch.empty_like(bias.contiguous()), offset_grad


def _group_norm_setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    x, _, weight, bias, _, ctx.silu, offset = inputs
    _, mean, inverse = output
    ctx.mark_non_differentiable(mean, inverse)
    ctx.save_for_backward(x, weight, bias, mean, inverse, offset)


def _group_norm_gradient(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    *saved, offset = ctx.saved_tensors
    x, weight, bias, shift = _group_norm_backward_operator(grad, *saved, ctx.silu, offset)
    return x, None, weight, bias, None, None, None if offset is None else shift


_group_norm_operator.register_autograd(_group_norm_gradient, setup_context=_group_norm_setup_context)
