"""A stack of autoencoders: each halves the sides, and each but the lowest reconstructs the latents of the one below.

Williams et al., Hierarchical Quantized Autoencoders, NeurIPS 2020. Layers are trained one after another from the lowest, the
finished ones frozen. Only the top layer's tokens are kept; on the way down every layer below chooses its codes anew.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arcvq import distributed
from arcvq.errors import ArcvqError
from arcvq.quantizers import HVQ, Quantized, Quantizer
from arcvq.tokenizers.small import SmallTrunkConfig, residual_stack
from arcvq.tokenizers.tokenizer import CLASSES, TRUNKS, Tokenizer

# What a layer's training tells of the latents that it reconstructs, in `stats`.
MOMENTS = ("target_count", "target_mean", "target_variance")


@dataclass(kw_only=True)
class HierarchicalTrunkConfig(SmallTrunkConfig):
    """The small trunk's options for every layer of a stack; beyond them:

    layers  how many; each halves the sides. `width` is the top one's, half of it one below
    """

    trunk: Literal["hierarchical"] = "hierarchical"  # type: ignore[assignment]
    layers: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.layers <= 16:
            raise ArcvqError(f"tokenizer.layers must be from 2 to 16, got {self.layers}")
        if self.width % 2**self.layers:
            raise ArcvqError(f"tokenizer.width must be a multiple of {2**self.layers}, got {self.width}")

    @property
    def downsampling(self) -> int:
        return 2**self.layers

    def of_layer(self, index: int) -> SmallTrunkConfig:
        """The options of layer `index`, counted from the lowest."""
        return SmallTrunkConfig(
            width=self.width >> (self.layers - 1 - index),
            residual_blocks=self.residual_blocks,
            residual_width=self.residual_width,
            latent_dim=self.latent_dim,
            skip_activated=self.skip_activated,
        )


class Double(nn.Module):
    """(B, C, h, w) → (B, C, 2h, 2w), every value four times. The compiler makes a scatter of interpolate's gradient; of this a sum."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            return F.interpolate(x, scale_factor=2.0, mode="nearest")
        batch, channels, height, width = x.shape
        fourfold = x[:, :, :, None, :, None].expand(-1, -1, -1, 2, -1, 2)
        return fourfold.reshape(batch, channels, 2 * height, 2 * width)


class LayerEncoder(nn.Sequential):
    """(B, C, H, W) → (B, latent_dim, H/2, W/2)."""

    def __init__(self, channels: int, config: SmallTrunkConfig) -> None:
        width = config.width
        super().__init__(
            nn.Conv2d(channels, width // 2, 3, stride=2, padding=1),  # H/2
            nn.Mish(),
            nn.Conv2d(width // 2, width, 3, padding=1),
            nn.Mish(),
            residual_stack(config),
            nn.Conv2d(width, config.latent_dim, 1),
        )


class LayerDecoder(nn.Sequential):
    """(B, latent_dim, h, w) → (B, C, 2h, 2w)."""

    def __init__(self, channels: int, config: SmallTrunkConfig) -> None:
        width = config.width
        super().__init__(
            nn.Conv2d(config.latent_dim, width, 3, padding=1),
            nn.Mish(),
            residual_stack(config),
            Double(),  # 2h
            nn.Conv2d(width, width // 2, 3, padding=1),
            nn.Mish(),
            nn.Conv2d(width // 2, channels, 3, padding=1),
        )


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


class Layer(nn.Module):
    """A layer below the top: an autoencoder of its own, and what hands its latents to the next."""

    def __init__(self, channels: int, config: SmallTrunkConfig, quantizer: HVQ) -> None:
        super().__init__()
        self.encoder = LayerEncoder(channels, config)
        self.quantizer = quantizer
        self.decoder = LayerDecoder(channels, config)
        self.standardize = Standardize(config.latent_dim)


class HierarchicalTokenizer(Tokenizer):
    """A Tokenizer whose encoder, quantizer and decoder are the top layer's; the layers below are `lower`.

    In training `forward` is that of the lowest layer that still learns: a stage that trains `lower.0`, then one that trains
    encoder, quantizer and decoder. The losses of the quantizer are then per element of what the layer reconstructs.
    """

    trunk: HierarchicalTrunkConfig

    def __init__(
        self,
        channels: int,
        trunk: SmallTrunkConfig,
        quantizer: Quantizer,
        *,
        image_size: tuple[int, int] | None = None,
        system: str | None = None,
    ) -> None:
        if not isinstance(trunk, HierarchicalTrunkConfig) or not isinstance(quantizer, HVQ):
            raise ArcvqError("a hierarchical tokenizer needs its own kind of trunk and the quantizer hvq")
        super().__init__(trunk.latent_dim, trunk, quantizer, image_size=image_size, system=system)
        if channels < 1:
            raise ArcvqError(f"channels must be at least 1, got {channels}")
        self.channels = channels
        options: dict[str, Any] = {
            f.name: getattr(quantizer.config, f.name) for f in dataclasses.fields(quantizer.config)
        }
        self.lower = nn.ModuleList(
            Layer(trunk.latent_dim if i else channels, trunk.of_layer(i), HVQ(trunk.latent_dim, **options))
            for i in range(trunk.layers - 1)
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Quantized]:
        learning = self.learning
        if not self.training or learning is None:
            return super().forward(images)
        with torch.no_grad():  # layers below are finished
            target, below = self._climb(images, learning)
        layer: Any = [*self.layers_below, self][learning]
        output = layer.quantizer(layer.encoder(target))
        made = layer.decoder(output.quantized)
        per_element = layer.quantizer.config.heads * self._per_element(target)
        losses = {name: term * per_element for name, term in output.losses.items()}
        stats = dict(output.stats)
        if below is None:
            reconstruction = squash(made)
        else:
            count = torch.full((), target.shape[0], device=target.device)
            losses["latents"] = F.mse_loss(made.float(), target.float()) * distributed.shard_weight(count)
            stats |= zip(MOMENTS, moments(below))
            with torch.no_grad():  # to look at: this layer does not learn from pixels
                reconstruction = self._descend(made, learning)
        loss = torch.stack(list(losses.values())).sum()
        return reconstruction, dataclasses.replace(output, losses=losses, loss=loss, stats=stats)

    def after_step(self, *outputs: Quantized) -> None:
        learning = self.learning
        layer: Any = self if learning is None else [*self.layers_below, self][learning]
        layer.quantizer.after_step(*outputs)
        if learning:
            standardize = self.layers_below[learning - 1].standardize
            for output in outputs:
                for shard in zip(*(distributed.gather(output.stats[name]) for name in MOMENTS)):
                    standardize.update_(*shard)

    def latents(self, images: Tensor) -> Tensor:
        return self.encoder(self._climb(images, len(self.lower))[0])

    def to_images(self, quantized: Tensor) -> Tensor:
        return self._descend(self.decoder(quantized), len(self.lower))

    def _convolutions(self) -> list[nn.Module]:
        below: list[nn.Module] = [part for layer in self.layers_below for part in (layer.encoder, layer.decoder)]
        return [*below, self.encoder, self.decoder]

    @property
    def quantizers(self) -> list[HVQ]:
        """Of every layer, from the lowest up."""
        return [*(layer.quantizer for layer in self.layers_below), cast("HVQ", self.quantizer)]

    @property
    def layers_below(self) -> list[Layer]:
        return cast("list[Layer]", list(self.lower))

    @property
    def learning(self) -> int | None:
        """The lowest layer with parameters that learn, counted from below; None when nothing does."""
        parts = [*self.lower, nn.ModuleList([self.encoder, self.quantizer, self.decoder])]
        return next((i for i, part in enumerate(parts) if any(p.requires_grad for p in part.parameters())), None)

    def _climb(self, images: Tensor, index: int) -> tuple[Tensor, Tensor | None]:
        """What layer `index` encodes and reconstructs, and, above the lowest, the same before it was standardized."""
        self._check(images)
        target, below = images.to(self.device, self.dtype), None
        for layer in self.layers_below[:index]:
            below = layer.encoder(target)
            target = layer.standardize(below)
        return target, below

    def _descend(self, made: Tensor, index: int) -> Tensor:
        """What layer `index` decoded → images (B, C, H, W) in (−1, 1)."""
        for layer in reversed(self.layers_below[:index]):
            made = layer.decoder(layer.quantizer.choose(layer.standardize.restore(made)))
        return squash(made)

    @staticmethod
    def _per_element(target: Tensor) -> float:
        """The layer's positions over elements of the target (B, C, H, W): a quarter of its positions, C channels each."""
        return 1 / (4 * target.shape[1])


def moments(latents: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How many values each channel of (B, C, h, w) has, their mean and their variance."""
    values = latents.detach().float().movedim(1, 0).flatten(1)  # (C, B·h·w)
    count = torch.full((), values.shape[1], dtype=torch.float32, device=values.device)
    mean = values.sum(dim=1) / count.clamp(min=1)
    return count, mean, (values - mean.unsqueeze(1)).square().sum(dim=1) / count.clamp(min=1)


def squash(made: Tensor) -> Tensor:
    """The sigmoid of pixels in [0, 1], for pixels in [−1, 1]."""
    return torch.tanh(made / 2)


def _channels(values: Tensor) -> Tensor:
    return values.view(1, -1, 1, 1)


TRUNKS["hierarchical"] = (HierarchicalTrunkConfig, LayerEncoder, LayerDecoder)
CLASSES["hierarchical"] = HierarchicalTokenizer
