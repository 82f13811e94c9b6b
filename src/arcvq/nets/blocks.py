"""The layers of the VQGAN family: residual blocks, and convolutions that halve or double the sides.

Each takes a condition that it hands to its norms: MoVQ's norms depend on the quantized latents, the others' on nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from arcvq.functional.group_norm import Activation
from arcvq.nets.attention import SelfAttention
from arcvq.nets.convolutions import FeatureConv2d
from arcvq.nets.norm import GroupNorm
from arcvq.nets.resampling import Upsample2x

# Builds a norm from its channels and the activation that follows it.
NormFactory = Callable[[int, Activation], nn.Module]


def apply_norm(norm: nn.Module, x: Tensor, condition: Tensor | None) -> Tensor:
    """Call a norm, with the condition if there is one."""
    return norm(x) if condition is None else norm(x, condition)


def convolve_and_norm(conv: nn.Module, norm: nn.Module, x: Tensor, condition: Tensor | None) -> Tensor:
    """A convolution and the norm after it. On a GPU the norm adds the convolution's bias, if it is one that can."""
    if x.is_cuda and condition is None and type(conv) is FeatureConv2d and type(norm) is GroupNorm:
        return norm(conv(x, with_bias=False), offset=conv.bias)
    return apply_norm(norm, conv(x), condition)


class ResidualBlock(nn.Module):
    """Twice a norm, SiLU and a 3×3 convolution, added to the input; self-attention after it if `attention`."""

    def __init__(self, channels: int, out: int, make_norm: NormFactory, attention: bool = False) -> None:
        super().__init__()
        self.norm1 = make_norm(channels, "silu")
        self.conv1 = FeatureConv2d(channels, out, 3, padding=1)
        self.norm2 = make_norm(out, "silu")
        self.conv2 = FeatureConv2d(out, out, 3, padding=1)
        self.shortcut = FeatureConv2d(channels, out, 1) if channels != out else nn.Identity()
        self.attention = SelfAttention(out, make_norm(out, "none")) if attention else None

    def forward(self, x: Tensor, condition: Tensor | None = None) -> Tensor:
        h = convolve_and_norm(self.conv1, self.norm2, apply_norm(self.norm1, x, condition), condition)
        x = self.conv2(h, self.shortcut(x))
        return x if self.attention is None else self.attention(x, condition=condition)


class Downsample(nn.Module):
    """(B, C, 2h, 2w) → (B, C, h, w): a 3×3 convolution of stride 2, padded with zeros at the right and the bottom only."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = FeatureConv2d(channels, channels, 3, stride=2)

    def forward(self, x: Tensor, condition: Tensor | None = None) -> Tensor:
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class Upsample(nn.Module):
    """(B, C, h, w) → (B, C, 2h, 2w): nearest neighbour, then a 3×3 convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.resize = Upsample2x()
        self.conv = FeatureConv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor, condition: Tensor | None = None) -> Tensor:
        return self.conv(self.resize(x))


class Stack(nn.ModuleList):
    """Layers one after the other. With `checkpointing` their activations are computed again in the backward pass of a training."""

    def __init__(self, layers: list[nn.Module], checkpointing: bool = False) -> None:
        super().__init__(layers)
        self.checkpointing = checkpointing

    def run(self, index: int, *inputs: Tensor | None) -> Tensor:
        """Call one layer."""
        layer = self[index]
        if self.checkpointing and self.training and torch.is_grad_enabled():
            # Nothing here draws random numbers, so that their state need not be kept.
            return checkpoint(layer, *inputs, use_reentrant=False, preserve_rng_state=False)
        return layer(*inputs)

    def forward(self, x: Tensor, *condition: Tensor | None) -> Tensor:
        for index in range(len(self)):
            x = self.run(index, x, *condition)
        return x
