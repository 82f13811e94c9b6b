"""How far apart the features of two images point, as LPIPS compares them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from arcvq.errors import ArcvqError
from arcvq.functional.chunks import Backend, choose_backend
from arcvq.functional.kernels.calls import on_device, without_second_derivative
from arcvq.functional.layout import memory_format_of
from arcvq.functional.precision import compute_dtype, without_autocast

EPSILON = 1e-10  # added to a norm
MAX_CHANNELS = 4096  # of the kernels


def unit_distance(x: Tensor, y: Tensor, weights: Tensor, *, backend: Backend = "auto") -> Tensor:
    """Features x and y (B, C, H, W), weights (C,) → (B,): the mean over the positions of Σ w (x/‖x‖ − y/‖y‖)², in float32.

    `triton` (CUDA, channels-last) reads the features once in each pass; the reference writes them out scaled, in float32.
    """
    if x.dim() != 4 or x.shape != y.shape or weights.shape != x.shape[1:2]:
        shapes = f"{tuple(x.shape)}, {tuple(y.shape)} and {tuple(weights.shape)}"
        raise ArcvqError(f"unit_distance takes two times features (B, C, H, W) and weights (C,), got {shapes}")
    if _uses_kernels(x, y, weights, backend):
        found: Tensor = _UnitDistance.apply(x, y, weights)
        return found
    with without_autocast(x):
        one, other = _unit(x), _unit(y)
        return F.conv2d((one - other).square(), weights.to(one.dtype).view(1, -1, 1, 1)).mean(dim=(1, 2, 3))


def _uses_kernels(x: Tensor, y: Tensor, weights: Tensor, backend: Backend) -> bool:
    layouts = {memory_format_of(each) for each in (x, y)}
    usable = choose_backend(backend, x) == "triton" and layouts == {torch.channels_last} and x.numel() > 0
    fits = x.shape[1] <= MAX_CHANNELS and not weights.requires_grad and x.dtype == y.dtype
    return usable and fits and not torch.compiler.is_compiling()  # a compiler fuses the reference by itself


def _unit(features: Tensor) -> Tensor:
    """Features of norm 1 at every position. The gradient at a norm of 0 is 0; with a square root it would be infinite."""
    full = features.to(compute_dtype(features))
    return full / (torch.linalg.vector_norm(full, dim=1, keepdim=True) + EPSILON)


@on_device
def _distances(x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    from arcvq.functional.kernels import unit_distance_kernels

    return unit_distance_kernels.distances(_channels_last(x), _channels_last(y), weights.contiguous(), EPSILON)


@on_device
def _gradient(grad: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    from arcvq.functional.kernels import unit_distance_kernels

    inputs = grad.float().contiguous(), _channels_last(x), _channels_last(y), weights.contiguous()
    return unit_distance_kernels.gradient(*inputs, EPSILON)


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


class _UnitDistance(torch.autograd.Function):
    """The distance by the kernels, which is symmetric: one kernel gives either gradient."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        ctx.save_for_backward(*arguments)
        return _distances(*arguments).view(arguments[0].shape[0], -1).mean(dim=1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, y, weights = ctx.saved_tensors
        pairs = ((x, y), (y, x))
        return *(
            without_second_derivative(_gradient(grads[0], *pair, weights), "unit_distance") if needed else None
            for pair, needed in zip(pairs, ctx.needs_input_grad)
        ), None
