"""GroupNorm, alone or followed by SiLU, whose statistics are float32 in any precision."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from arcvq.errors import ArcvqError
from arcvq.functional import fused_norm
from arcvq.functional.chunks import Backend, choose_backend
from arcvq.functional.layout import memory_format_of
from arcvq.functional.precision import without_autocast

Activation = Literal["none", "silu"]
ACTIVATIONS: tuple[Activation, ...] = ("none", "silu")


def group_norm(
    x: Tensor,
    groups: int,
    weight: Tensor,
    bias: Tensor,
    eps: float = 1e-6,
    *,
    activation: Activation = "none",
    offset: Tensor | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """GroupNorm of x (B, C, H, W), then SiLU if that is the activation; in the dtype and the memory layout of x.

    `offset` (C,), the bias of a convolution before, is added to x first, which costs the kernels nothing. Autocast does not change
    the result. Statistics are float32, of float64 inputs float64. `triton` (CUDA, channels-last inputs) keeps only its input for the
    backward pass; other inputs, and the backend `chunked`, mean the reference.
    """
    check_activation(activation)
    _check_shapes(x, groups, weight, bias, *([] if offset is None else [offset]))
    layout = memory_format_of(x)
    if choose_backend(backend, x) == "triton" and layout == torch.channels_last and x.numel():
        return fused_norm.group_norm(x, groups, weight, bias, eps, activation == "silu", offset)
    if offset is not None:
        x = x + offset.to(x.dtype)[:, None, None]
    with without_autocast(x):
        # On a contiguous copy: torch's channels-last kernel for CPUs subtracts squares of sums, which fails for large means, and its
        # kernel for GPUs makes this copy itself.
        y = torch.group_norm(x.contiguous(), groups, weight.to(x.dtype), bias.to(x.dtype), eps)
        return (F.silu(y) if activation == "silu" else y).contiguous(memory_format=layout)


def check_activation(activation: str) -> None:
    """Raise unless this is a known activation."""
    if activation not in ACTIVATIONS:
        raise ArcvqError(f"unknown activation {activation!r}: expected one of {', '.join(ACTIVATIONS)}")


def check_groups(channels: int, groups: int) -> None:
    """Raise unless the channels can be divided into this number of groups."""
    if channels < 1 or groups < 1 or channels % groups:
        raise ArcvqError(
            f"{channels} channels cannot be divided into {groups} groups: choose a divisor of the channels"
        )


def _check_shapes(x: Tensor, groups: int, *parameters: Tensor) -> None:
    """Raise unless x is a batch of images whose channels the groups and the parameters fit: weight, bias and an offset."""
    if x.dim() != 4 or not x.is_floating_point():
        raise ArcvqError(
            f"group_norm takes floating-point images (B, C, H, W), got {x.dtype} of shape {tuple(x.shape)}"
        )
    check_groups(x.shape[1], groups)
    if any(each.shape != x.shape[1:2] for each in parameters):
        shapes = ", ".join(str(tuple(each.shape)) for each in parameters)
        raise ArcvqError(f"weight, bias and offset must have shape ({x.shape[1]},), one number a channel, got {shapes}")
