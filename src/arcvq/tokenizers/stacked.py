"""A stack of autoencoders: each halves the sides, and each but the lowest reconstructs the latents of the one below.

Williams et al., Hierarchical Quantized Autoencoders, NeurIPS 2020. Levels are trained one after another from the lowest, the
finished ones frozen. Only the top level's tokens are kept; on the way down every level below chooses its codes anew.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arcvq import distributed
from arcvq.errors import ArcvqError
from arcvq.nets.autoencoder import Autoencoder
from arcvq.nets.small import SmallConfig
from arcvq.nets.stacked import LevelDecoder, LevelEncoder, StackedConfig
from arcvq.quantizers import HVQ, Quantized, Quantizer
from arcvq.tokenizers.tokenizer import Tokenizer


class Moments(NamedTuple):
    """How many values each channel had, their means and their variances."""

    values: Tensor
    mean: Tensor
    variance: Tensor


class LevelOutput(NamedTuple):
    """What training one level returns."""

    reconstruction: Tensor  # images (B, C, H, W) in (-1, 1)
    quantized: Quantized  # its losses are per element of what the level reconstructs
    below: Moments | None  # of the latents that it reconstructs; None at the lowest level

    def detach(self) -> LevelOutput:
        return LevelOutput(self.reconstruction.detach(), self.quantized.detach(), self.below)


class Standardize(nn.Module):
    """Each channel to mean 0 and variance 1, by the moments of all that was seen (Welford); the identity until then."""

    count: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("variance", torch.ones(channels))

    def forward(self, latents: Tensor) -> Tensor:
        return (latents - _channels(self.mean)) / _channels(self._deviation)

    def restore(self, standard: Tensor) -> Tensor:
        return standard * _channels(self._deviation) + _channels(self.mean)

    @torch.no_grad()
    def update_(self, count: Tensor, mean: Tensor, variance: Tensor) -> None:
        """Take in a batch's own count, means and variances (of the whole, not of a sample)."""
        total = (self.count + count).clamp(min=1)
        difference = mean - self.mean
        spread = self.count * self.variance + count * variance + difference.square() * self.count * count / total
        self.variance.copy_(torch.where(self.count + count > 0, spread / total, self.variance))
        self.mean.add_(difference * (count / total))
        self.count.add_(count)

    @property
    def _deviation(self) -> Tensor:
        return self.variance.sqrt().clamp(min=1e-5)


class Level(nn.Module):
    """A level below the top: an autoencoder of its own, and what hands its latents to the next."""

    def __init__(self, channels: int, config: SmallConfig, quantizer: HVQ) -> None:
        super().__init__()
        self.encoder = LevelEncoder(channels, config)
        self.quantizer = quantizer
        self.decoder = LevelDecoder(channels, config)
        self.standardize = Standardize(config.latent_dim)


class StackedTokenizer(Tokenizer):
    """A Tokenizer whose autoencoder and quantizer are the top level's; the levels below are `lower`, from the lowest up."""

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
    ) -> tuple[Tensor, Quantized] | LevelOutput:
        """Train one level, counted from the lowest; without one, reconstruct through all levels."""
        if level is None:
            quantized = self.quantize(self.latents(images))
            return self.to_images(quantized.quantized), quantized
        with torch.no_grad():  # the levels below are finished
            target, below = self._encode_to(images, level)
        part: Any = self.autoencoder if level == len(self.lower) else self.levels_below[level]
        quantizer = self.quantizers[level]
        output = quantizer(part.encoder(target))
        decoded = part.decoder(output.quantized)
        # The quantizer's losses are means over positions: a quarter of the target's positions, of C channels each.
        per_element = quantizer.config.heads / (4 * target.shape[1])
        losses = {name: term * per_element for name, term in output.losses.items()}
        if below is None:
            reconstruction = squash(decoded)
        else:
            count = torch.full((), target.shape[0], device=target.device)
            losses["latents"] = F.mse_loss(decoded.float(), target.float()) * distributed.shard_weight(count)
            with torch.no_grad():  # only to be logged: this level does not learn from pixels
                reconstruction = self._decode_from(decoded, level)
        loss = torch.stack(list(losses.values())).sum()
        quantized = dataclasses.replace(output, losses=losses, loss=loss)
        return LevelOutput(reconstruction, quantized, None if below is None else moments(below))

    def after_step(self, *outputs: Quantized) -> None:
        raise ArcvqError("a stack is trained level by level: call after_level_step")

    def after_level_step(self, level: int, outputs: list[LevelOutput]) -> None:
        """Once after each optimizer step of a level, with the outputs of that step's micro-batches."""
        self.quantizers[level].after_step(*(output.quantized for output in outputs))
        for output in outputs:
            if output.below is not None:
                standardize = self.levels_below[level - 1].standardize
                for shard in zip(*(distributed.gather(part) for part in output.below)):
                    standardize.update_(*shard)

    def latents(self, images: Tensor) -> Tensor:
        self._check(images)
        return self.autoencoder.encode(self._encode_to(images, len(self.lower))[0])[0]

    def to_images(self, quantized: Tensor) -> Tensor:
        return self._decode_from(self.autoencoder.decode(quantized).images, len(self.lower))

    def modules_to_compile(self) -> list[nn.Module]:
        below: list[nn.Module] = [part for level in self.levels_below for part in (level.encoder, level.decoder)]
        return [*below, *self.autoencoder.modules_to_compile()]

    @property
    def quantizers(self) -> list[HVQ]:
        """Of every level, from the lowest up."""
        return [*(level.quantizer for level in self.levels_below), cast("HVQ", self.quantizer)]

    @property
    def levels_below(self) -> list[Level]:
        return cast("list[Level]", list(self.lower))

    def _encode_to(self, images: Tensor, level: int) -> tuple[Tensor, Tensor | None]:
        """What a level encodes and reconstructs and, above the lowest, the same before it was standardized."""
        self._check(images)
        target, below = images.to(self.device, self.dtype), None
        for each in self.levels_below[:level]:
            below = each.encoder(target)
            target = each.standardize(below)
        return target, below

    def _decode_from(self, decoded: Tensor, level: int) -> Tensor:
        """What a level decoded → images (B, C, H, W) in (-1, 1)."""
        for each in reversed(self.levels_below[:level]):
            decoded = each.decoder(each.quantizer.choose(each.standardize.restore(decoded)))
        return squash(decoded)


def moments(latents: Tensor) -> Moments:
    """Of each channel of (B, C, h, w)."""
    values = latents.detach().float().movedim(1, 0).flatten(1)  # (C, B·h·w)
    count = torch.full((), values.shape[1], dtype=torch.float32, device=values.device)
    mean = values.sum(dim=1) / count.clamp(min=1)
    return Moments(count, mean, (values - mean.unsqueeze(1)).square().sum(dim=1) / count.clamp(min=1))


def squash(decoded: Tensor) -> Tensor:
    """The sigmoid of pixels in [0, 1], for pixels in [-1, 1]."""
    return torch.tanh(decoded / 2)


def _channels(values: Tensor) -> Tensor:
    return values.view(1, -1, 1, 1)
