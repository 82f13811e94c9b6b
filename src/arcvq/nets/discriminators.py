"""Discriminators: images (B, C, H, W) in [-1, 1] → logits, high where an image looks real. A forward pass changes no state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arcvq.errors import ArcvqError


def check_range(name: str, value: int, least: int, most: int) -> None:
    """Raise unless a setting is in its range: a saved configuration may come from anyone."""
    if not least <= value <= most:
        raise ArcvqError(f"{name} must be from {least} to {most}, got {value}")


class Blur(nn.Module):
    """Smooths each channel with a separable filter of weight 1. `padding`: rows and columns of zeros before and after."""

    kernel: Tensor

    def __init__(self, taps: Sequence[float], padding: tuple[int, int]) -> None:
        super().__init__()
        row = torch.tensor(taps) / sum(taps)
        self.register_buffer("kernel", torch.outer(row, row)[None, None], persistent=False)
        self.padding = padding

    def forward(self, x: Tensor) -> Tensor:
        channels = x.shape[1]
        kernel = self.kernel.to(x.dtype).expand(channels, -1, -1, -1)
        return F.conv2d(F.pad(x, self.padding * 2), kernel, groups=channels)


@dataclass(kw_only=True)
class PatchConfig:
    """width   channels after the first convolution; each further one doubles them, up to 8 times
    layers  convolutions of stride 2, which set how large the judged patches are: 70 pixels with 3, 34 with 2
    norm    batch: by the statistics of the batch at hand, real and reconstructed apart, each process its own; group; or none
    groups  of the group norm
    blur    smooth with [1, 2, 1] before each stride, as VQGAN+ does against aliasing
    """

    width: int = 64
    layers: int = 3
    norm: Literal["batch", "group", "none"] = "batch"
    groups: int = 32
    blur: bool = False

    def __post_init__(self) -> None:
        check_range("width", self.width, 1, 1024)
        check_range("layers", self.layers, 1, 8)
        if self.norm == "group" and (self.groups < 1 or 2 * self.width % self.groups):
            raise ArcvqError(f"groups must divide twice the width, {2 * self.width}, got {self.groups}")


class PatchDiscriminator(nn.Module):
    """PatchGAN (Isola et al., 2017): a logit for each patch, (B, 1, h, w)."""

    Config = PatchConfig

    def __init__(self, channels: int, config: PatchConfig) -> None:
        super().__init__()
        self.config = config
        widths = [config.width * min(2**i, 8) for i in range(config.layers + 1)]
        layers: list[nn.Module] = [*self._strided(channels, widths[0], bias=True), nn.LeakyReLU(0.2)]
        bias = config.norm != "batch"  # the batch norm would take it away again
        for before, after in pairwise(widths[:-1]):
            layers += [*self._strided(before, after, bias), self._norm(after), nn.LeakyReLU(0.2)]
        last = nn.Conv2d(widths[-2], widths[-1], 4, padding=1, bias=bias)
        layers += [last, self._norm(widths[-1]), nn.LeakyReLU(0.2), nn.Conv2d(widths[-1], 1, 4, padding=1)]
        self.layers = nn.Sequential(*layers)
        self.apply(_init_patch)

    def check_size(self, height: int, width: int) -> None:
        """Raise if images of this size are too small."""
        smallest = 3 * 2**self.config.layers
        if min(height, width) < smallest:
            raise ArcvqError(
                f"a patch discriminator of {self.config.layers} layers needs images of at least {smallest} pixels a side, got "
                f"{height}×{width}: set adversarial.discriminator.layers to less"
            )

    def forward(self, images: Tensor) -> Tensor:
        self.check_size(*images.shape[-2:])
        logits: Tensor = self.layers(images)
        return logits

    def _strided(self, before: int, after: int, bias: bool) -> list[nn.Module]:
        """A convolution that halves the sides."""
        blur = [Blur((1, 2, 1), (1, 1))] if self.config.blur else []
        return [*blur, nn.Conv2d(before, after, 4, stride=2, padding=1, bias=bias)]

    def _norm(self, width: int) -> nn.Module:
        if self.config.norm == "batch":
            # Running statistics would be for an evaluation, which a discriminator never has.
            return nn.BatchNorm2d(width, track_running_stats=False)
        return nn.GroupNorm(self.config.groups, width) if self.config.norm == "group" else nn.Identity()


def _init_patch(module: nn.Module) -> None:
    """Convolutions N(0, 0.02²), scales of batch norms N(1, 0.02²), biases 0."""
    if isinstance(module, nn.Conv2d | nn.BatchNorm2d):
        nn.init.normal_(module.weight, 0.0 if isinstance(module, nn.Conv2d) else 1.0, 0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


@dataclass(kw_only=True)
class StyleGANConfig:
    """width      channels at the image's size; each level doubles them
    max_width  the most channels
    levels     how often the sides are halved: image sides are multiples of 2^levels. 6 for 256 pixels leaves 4×4
    """

    width: int = 64
    max_width: int = 512
    levels: int = 6

    def __post_init__(self) -> None:
        check_range("width", self.width, 1, 1024)
        check_range("max_width", self.max_width, self.width, 4096)
        check_range("levels", self.levels, 1, 10)


class StyleGANDiscriminator(nn.Module):
    """The residual discriminator of StyleGAN2 (Karras et al., 2020): a logit for each image, (B, 1).

    It takes images of any size: the last map is averaged over its positions, where StyleGAN2 flattens one of a fixed 4×4.
    The standard deviation that it sees as one more channel is that of up to 4 images of a process's batch.
    """

    Config = StyleGANConfig

    def __init__(self, channels: int, config: StyleGANConfig) -> None:
        super().__init__()
        self.config = config
        widths = [min(config.width * 2**i, config.max_width) for i in range(config.levels + 1)]
        self.first = ScaledConv2d(channels, widths[0], 1)
        self.blocks = nn.Sequential(*(ResidualDown(*pair) for pair in pairwise(widths)))
        self.last = ScaledConv2d(widths[-1] + 1, widths[-1], 3, padding=1)
        self.hidden = ScaledLinear(widths[-1], widths[-1])
        self.logit = ScaledLinear(widths[-1], 1)

    def check_size(self, height: int, width: int) -> None:
        """Raise unless the sides can be halved so often."""
        multiple = 2**self.config.levels
        if height % multiple or width % multiple:
            raise ArcvqError(
                f"a stylegan discriminator of {self.config.levels} levels needs image sides that are multiples of {multiple}, "
                f"got {height}×{width}: set adversarial.discriminator.levels to less"
            )

    def forward(self, images: Tensor) -> Tensor:
        self.check_size(*images.shape[-2:])
        maps = self.blocks(activate(self.first(images)))
        maps = activate(self.last(torch.cat([maps, batch_deviation(maps)], dim=1)))
        logits: Tensor = self.logit(activate(self.hidden(maps.mean(dim=(2, 3)))))
        return logits


class ResidualDown(nn.Module):
    """(B, before, H, W) → (B, after, H/2, W/2)."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.conv1 = ScaledConv2d(before, before, 3, padding=1)
        self.conv2 = nn.Sequential(Blur((1, 3, 3, 1), (2, 2)), ScaledConv2d(before, after, 3, stride=2))
        self.skip = nn.Sequential(Blur((1, 3, 3, 1), (1, 1)), ScaledConv2d(before, after, 1, stride=2, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        return (activate(self.conv2(activate(self.conv1(x)))) + self.skip(x)) / math.sqrt(2)


class ScaledConv2d(nn.Conv2d):
    """A convolution with weights from N(0, 1) that are divided by √fan-in when used, so that all layers learn at one rate."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight / math.sqrt(self.weight[0].numel())
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


class ScaledLinear(nn.Linear):
    """A linear layer whose weights are scaled as those of `ScaledConv2d`."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight / math.sqrt(self.in_features), self.bias)


def activate(x: Tensor) -> Tensor:
    """A leaky ReLU with a gain that keeps the variance."""
    return F.leaky_relu(x, 0.2) * math.sqrt(2)


def batch_deviation(maps: Tensor, most: int = 4) -> Tensor:
    """(B, C, h, w) → (B, 1, h, w): how much images of a group differ, one number per group, at every position.

    A group has as many images as divide the batch, 4 at most. Without such a channel a network that always makes one image fools it.
    """
    batch, channels, height, width = maps.shape
    size = next(size for size in range(most, 0, -1) if batch % size == 0)
    full = maps.float() if maps.dtype != torch.float64 else maps
    groups = full.reshape(size, batch // size, channels, height, width)
    variance = (groups - groups.mean(dim=0)).square().mean(dim=0)
    deviation = (variance + 1e-8).sqrt().mean(dim=(1, 2, 3))  # (B / size,)
    return deviation.to(maps.dtype).repeat(size).view(batch, 1, 1, 1).expand(-1, 1, height, width)
