"""A stack of autoencoders: each halves the image sides, and each above the lowest reconstructs the latents of the level below.

Williams et al., Hierarchical Quantized Autoencoders, NeurIPS 2020. The levels are trained one after another from the lowest, with
the levels below frozen. The tokens are those of the top level; in decoding, each level below quantizes the latents again.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arcvq import distributed
from arcvq.errors import ArcvqError
from arcvq.nets.autoencoder import Autoencoder, Decoded
from arcvq.nets.small import SmallConfig
from arcvq.nets.stacked import LevelDecoder, LevelEncoder, StackedConfig
from arcvq.quantizers import HVQ, Quantized, Quantizer
from arcvq.tokenizers.tokenizer import Tokenizer


class Moments(NamedTuple):
    """The number of values, the mean and the variance of each channel."""

    values: Tensor
    mean: Tensor
    variance: Tensor


class LevelOutput(NamedTuple):
    """The output of a training pass of one level."""

    reconstruction: Tensor  # images (B, C, H, W) in (-1, 1)
    quantized: Quantized  # its losses are per element of the level's target
    below: Moments | None  # of the latents of the level below; None for the lowest level

    def detach(self) -> LevelOutput:
        """The same output without gradients."""
        return LevelOutput(self.reconstruction.detach(), self.quantized.detach(), self.below)


class Standardize(nn.Module):
    """Standardizes each channel to mean 0 and variance 1 by running moments (Welford); the identity before the first update."""

    count: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("variance", torch.ones(channels))

    def forward(self, latents: Tensor) -> Tensor:
        """Standardize latents (B, C, h, w)."""
        return (latents - _per_channel(self.mean)) / _per_channel(self._deviation)

    def invert(self, standard: Tensor) -> Tensor:
        """Standardized latents → latents."""
        return standard * _per_channel(self._deviation) + _per_channel(self.mean)

    @torch.no_grad()
    def update_(self, count: Tensor, mean: Tensor, variance: Tensor) -> None:
        """Update the running moments with a batch's count, means and population variances, in place."""
        total = (self.count + count).clamp(min=1)
        difference = mean - self.mean
        spread = self.count * self.variance + count * variance + difference.square() * self.count * count / total
        self.variance.copy_(torch.where(self.count + count > 0, spread / total, self.variance))
        self.mean.add_(difference * (count / total))
        self.count.add_(count)

    @property
    def _deviation(self) -> Tensor:
        """Standard deviation of each channel, at least 1e-5."""
        return self.variance.sqrt().clamp(min=1e-5)


class Level(nn.Module):
    """A level below the top: an autoencoder, a quantizer, and the standardization of its latents for the level above."""

    def __init__(self, channels: int, config: SmallConfig, quantizer: HVQ) -> None:
        super().__init__()
        self.encoder = LevelEncoder(channels, config)
        self.quantizer = quantizer
        self.decoder = LevelDecoder(channels, config)
        self.standardize = Standardize(config.latent_dim)


class StackedTokenizer(Tokenizer):
    """A tokenizer of several levels; `autoencoder` and `quantizer` are the top level, `lower` the levels below from the lowest."""

    def __init__(
        self,
        autoencoder: Autoencoder,
        quantizer: Quantizer,
        *,
        image_size: tuple[int, int] | None = None,
        system: str | None = None,
    ) -> None:
        config = autoencoder.config
        if not isinstance(config, StackedConfig) or not isinstance(quantizer, HVQ):
            raise ArcvqError("a stacked tokenizer needs the autoencoder stacked and the quantizer hvq")
        super().__init__(autoencoder, quantizer, image_size=image_size, system=system)
        self.lower = nn.ModuleList(
            Level(
                config.latent_dim if i else self.channels,
                config.of_level(i),
                HVQ(quantizer.dim, config=quantizer.config),
            )
            for i in range(config.layers - 1)
        )

    def forward(  # type: ignore[override]
        self, images: Tensor, level: int | None = None
    ) -> tuple[Decoded, Quantized] | LevelOutput:
        """Training pass of one level, counted from the lowest; without a level, reconstruct through all levels."""
        if level is None:
            quantized = self.quantize(self.latents(images))
            return Decoded(self.to_images(quantized.quantized)), quantized
        with torch.no_grad():  # the levels below are frozen
            target, below = self._encode_to(images, level)
        trained_level: Any = self.autoencoder if level == len(self.lower) else self.levels_below[level]
        quantizer = self.quantizers[level]
        output = quantizer(trained_level.encoder(target))
        decoded = trained_level.decoder(output.quantized)
        # The quantizer's losses are means over positions; the target has 4 positions of C channels for each of them.
        per_element = quantizer.config.heads / (4 * target.shape[1])
        losses = {name: term * per_element for name, term in output.losses.items()}
        if below is None:
            reconstruction = to_pixel_range(decoded)
        else:
            losses["latents"] = F.mse_loss(decoded.float(), target.float()) * distributed.batch_weight(target)
            with torch.no_grad():  # only for logs: this level does not learn from pixels
                reconstruction = self._decode_from(decoded, level)
        loss = torch.stack(list(losses.values())).sum()
        quantized = dataclasses.replace(output, losses=losses, loss=loss)
        return LevelOutput(reconstruction, quantized, None if below is None else moments(below))

    def after_step(self, *outputs: Quantized) -> None:
        """Not available: levels are updated by `after_level_step`."""
        raise ArcvqError("a stack is trained level by level: call after_level_step")

    def after_level_step(self, level: int, outputs: list[LevelOutput]) -> None:
        """Update a level after each of its optimizer steps, with the outputs of that step's micro-batches."""
        self.quantizers[level].after_step(*(output.quantized for output in outputs))
        for output in outputs:
            if output.below is not None:
                standardize = self.levels_below[level - 1].standardize
                for shard in zip(*(distributed.gather(part) for part in output.below)):
                    standardize.update_(*shard)

    def latents(self, images: Tensor) -> Tensor:
        """Images → latents of the top level, before quantization."""
        self._check_images(images)
        return self.autoencoder.encode(self._encode_to(images, len(self.lower))[0])[0]

    def to_images(self, quantized: Tensor) -> Tensor:
        """Quantized latents of the top level → images in (-1, 1)."""
        return self._decode_from(self.autoencoder.decode(quantized).images, len(self.lower))

    def modules_to_compile(self) -> list[nn.Module]:
        """Encoder and decoder of every level."""
        below: list[nn.Module] = [module for level in self.levels_below for module in (level.encoder, level.decoder)]
        return [*below, *self.autoencoder.modules_to_compile()]

    @property
    def quantizers(self) -> list[HVQ]:
        """The quantizers of all levels, from the lowest up."""
        return [*(level.quantizer for level in self.levels_below), cast("HVQ", self.quantizer)]

    @property
    def levels_below(self) -> list[Level]:
        """The levels below the top, from the lowest up."""
        return cast("list[Level]", list(self.lower))

    def _encode_to(self, images: Tensor, level: int) -> tuple[Tensor, Tensor | None]:
        """The target that a level encodes and reconstructs, and the same before standardization (None for the lowest level)."""
        self._check_images(images)
        target, below = images.to(self.device, self.dtype), None
        for lower in self.levels_below[:level]:
            below = lower.encoder(target)
            target = lower.standardize(below)
        return target, below

    def _decode_from(self, decoded: Tensor, level: int) -> Tensor:
        """The output of a level's decoder → images (B, C, H, W) in (-1, 1), through all levels below."""
        for lower in reversed(self.levels_below[:level]):
            decoded = lower.decoder(lower.quantizer.quantize_as_in_evaluation(lower.standardize.invert(decoded)))
        return to_pixel_range(decoded)


def moments(latents: Tensor) -> Moments:
    """Count, mean and variance of each channel of latents (B, C, h, w)."""
    values = latents.detach().float().movedim(1, 0).flatten(1)  # (C, B·h·w)
    count = torch.full((), values.shape[1], dtype=torch.float32, device=values.device)
    mean = values.sum(dim=1) / count.clamp(min=1)
    return Moments(count, mean, (values - mean.unsqueeze(1)).square().sum(dim=1) / count.clamp(min=1))


def to_pixel_range(decoded: Tensor) -> Tensor:
    """Decoder outputs → pixels in (-1, 1): tanh(x / 2) is the sigmoid, scaled to that range."""
    return torch.tanh(decoded / 2)


def _per_channel(values: Tensor) -> Tensor:
    """Reshape (C,) to (1, C, 1, 1)."""
    return values.view(1, -1, 1, 1)
