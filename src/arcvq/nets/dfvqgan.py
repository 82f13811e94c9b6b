"""VQGAN's autoencoder for images with a defective region. After Ni et al., NÜWA-LIP, CVPR 2023.

What the encoder makes of the visible positions does not depend on the defective ones, and the decoder is shown those features besides
the latents. Without a mask the whole image counts as defective: an autoencoder whose images come from the latents alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arcvq.errors import ArcvqError
from arcvq.functional.group_norm import Activation
from arcvq.functional.precision import compute_dtype, without_autocast
from arcvq.nets.attention import SelfAttention
from arcvq.nets.autoencoder import AutoencoderConfig, Decoded
from arcvq.nets.blocks import Downsample, NormFactory, ResidualBlock, Upsample
from arcvq.nets.norm import GroupNorm
from arcvq.nets.vqgan import VqganAutoencoder, VqganConfig, VqganDecoder, VqganEncoder


@dataclass(kw_only=True)
class DfvqganConfig(VqganConfig):
    """VQGAN's options. The decoder mirrors the encoder, so that it has as many blocks: decoder_blocks stays None."""

    latent_dim: int = 256
    multipliers: tuple[int, ...] = (1, 1, 2, 4)
    attention: tuple[int, ...] = (16,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decoder_blocks not in (None, self.blocks):
            raise ArcvqError(
                f"autoencoder.decoder_blocks must be autoencoder.blocks ({self.blocks}), which it mirrors, got "
                f"{self.decoder_blocks}: leave it out"
            )


class DefectContext(NamedTuple):
    """What the decoder gets besides the latents: the encoder's features, and where they must not be used."""

    masks: tuple[Tensor, ...]  # (B, 1, h, w), bool, True where the image is defective; one for each skip
    skips: tuple[Tensor, ...]  # (B, C, h, w), in the encoder's order
    connected: Tensor | None = None  # (B,), bool: False disables the skips of that image


class MaskedGroupNorm(GroupNorm):
    """GroupNorm by the statistics of all positions where the mask is True, and by those of the visible positions elsewhere."""

    def forward(self, x: Tensor, mask: Tensor | None = None, *, offset: Tensor | None = None) -> Tensor:
        x = x if offset is None else x + offset.to(x.dtype)[:, None, None]
        everywhere = super().forward(x)
        return everywhere if mask is None else torch.where(mask, everywhere, self._by_visible(x, mask).to(x.dtype))

    def _by_visible(self, x: Tensor, mask: Tensor) -> Tensor:
        dtype, groups = compute_dtype(x), self.groups
        with without_autocast(x):
            values = x.to(dtype).unflatten(1, (groups, -1))  # (B, groups, C / groups, H, W)
            hidden = mask.unsqueeze(1)
            count = (~mask).sum(dim=(1, 2, 3)).clamp(min=1).view(-1, 1, 1, 1, 1) * values.shape[2]
            mean = values.masked_fill(hidden, 0).sum(dim=(2, 3, 4), keepdim=True) / count
            centred = values - mean
            variance = centred.masked_fill(hidden, 0).square().sum(dim=(2, 3, 4), keepdim=True) / count
            normed = (centred * (variance + self.eps).rsqrt()).flatten(1, 2)
            y = normed * self.weight.to(dtype).view(-1, 1, 1) + self.bias.to(dtype).view(-1, 1, 1)
            return F.silu(y) if self.activation == "silu" else y


def apply_masked(function: Callable[[Tensor], Tensor], x: Tensor, mask: Tensor, out_mask: Tensor) -> Tensor:
    """A convolution whose visible outputs see visible inputs only, and whose defective outputs see all."""
    return torch.where(out_mask, function(x), function(x.masked_fill(mask, 0)))


def hide_defects(images: Tensor, mask: Tensor) -> Tensor:
    """Images with grey in place of their defective pixels, as in-painting sees them."""
    return images.masked_fill(mask, 0)


def shrink_mask(mask: Tensor) -> Tensor:
    """(B, 1, 2h, 2w) → (B, 1, h, w): True where any of the four is."""
    return F.max_pool2d(mask.float(), 2) > 0


class MaskedBlock(ResidualBlock):
    """A residual block that takes a mask: visible positions see visible positions only."""

    def forward(self, x: Tensor, condition: Tensor | None = None) -> Tensor:
        if condition is None:
            return super().forward(x)
        h = apply_masked(self.conv1, self.norm1(x, condition), condition, condition)
        h = apply_masked(self.conv2, self.norm2(h, condition), condition, condition)
        x = self.shortcut(x) + h  # a 1×1 convolution sees its own position only
        if self.attention is None:
            return x
        hidden = condition.flatten(1)  # (B, N)
        return self.attention(x, hidden[:, :, None] | ~hidden[:, None, :], condition=condition)


class MaskedDownsample(Downsample):
    """Halves the sides. With a mask, what is visible after it has seen visible positions only."""

    def forward(self, x: Tensor, condition: Tensor | None = None) -> Tensor:
        if condition is None:
            return super().forward(x)
        return apply_masked(super().forward, x, condition, shrink_mask(condition))


class DfvqganEncoder(VqganEncoder):
    """VQGAN's encoder, which may also be given a mask."""

    block = MaskedBlock
    downsample = MaskedDownsample

    def encode_masked(self, images: Tensor, mask: Tensor) -> tuple[Tensor, DefectContext]:
        """Images and their mask (B, 1, H, W), bool → latents, and the features for the decoder."""
        x = apply_masked(self.conv_in, images, mask, mask)
        masks, skips = [], []
        for index, layer in enumerate(self.layers):
            x = self.layers.run(index, x, mask)
            mask = shrink_mask(mask) if isinstance(layer, Downsample) else mask
            masks.append(mask)
            skips.append(x)
        x = self.norm_out(self.middle(x, mask), mask)
        latents = self.quant_conv(apply_masked(self.conv_out, x, mask, mask))
        return latents, DefectContext(tuple(masks), tuple(skips))


class DfvqganDecoder(VqganDecoder):
    """Mirrors the encoder, layer by layer, so that each layer can be given the features that the encoder had there."""

    def make_layers(self, config: VqganConfig, make_norm: NormFactory) -> tuple[list[nn.Module], int]:
        layers: list[nn.Module] = []
        widths_above = [config.width, *config.widths]
        for level, width in reversed(list(enumerate(config.widths))):
            outputs = widths_above[level]
            for index in range(config.blocks):
                block = ResidualBlock(width, width if index < config.blocks - 1 else outputs, make_norm)
                attention = [SelfAttention(width, make_norm(width, "none"))] if config.has_attention(level) else []
                layers.append(nn.Sequential(*attention, block))
            if level:
                layers.append(Upsample(outputs))
        return layers, config.width

    def forward(self, latents: Tensor, context: DefectContext | None = None) -> Tensor:
        x = self.middle(self.conv_in(self.post_quant_conv(latents)))
        for index in range(len(self.layers)):
            if context is not None:
                x = connect(x, context.skips[-1 - index], context.masks[-1 - index], context.connected)
            x = self.layers.run(index, x)
        return self.conv_out(self.norm_out(x))


def connect(x: Tensor, skip: Tensor, mask: Tensor, connected: Tensor | None) -> Tensor:
    """The mean of the decoder's and the encoder's features where the image is visible, the decoder's elsewhere."""
    if connected is not None:
        mask = mask | ~connected.view(-1, 1, 1, 1)
    return torch.where(mask, x, (skip + x) / 2)


class DfvqganAutoencoder(VqganAutoencoder):
    """VQGAN's autoencoder; `encode(images, mask)` keeps the defective region (1) out of what the visible one (0) becomes.

    The context then holds the visible features, which bypass the latents: `connected` disables them for some images of a batch, and
    `decode` without the context for all.
    """

    Config: ClassVar[type[AutoencoderConfig]] = DfvqganConfig
    config: DfvqganConfig
    encoder: DfvqganEncoder

    def make_encoder(self) -> VqganEncoder:
        def make_norm(channels: int, activation: Activation) -> nn.Module:
            return MaskedGroupNorm(channels, self.config.groups, activation=activation)

        return DfvqganEncoder(self.channels, self.config, make_norm)

    def make_decoder(self) -> nn.Module:
        return DfvqganDecoder(self.channels, self.config, self.config.group_norm)

    takes_mask = True

    def encode(self, images: Tensor, mask: Tensor | None = None, connected: Tensor | None = None) -> tuple[Tensor, Any]:
        """As without a mask if there is none. `connected` (B,): False keeps the visible features from the decoder."""
        if mask is None:
            return self.encoder(images), None
        expected = (images.shape[0], 1, *images.shape[2:])
        if mask.shape != expected:
            raise ArcvqError(f"expected a mask {expected}, 1 where an image is defective, got {tuple(mask.shape)}")
        latents, context = self.encoder.encode_masked(images, mask.bool())
        return latents, context._replace(connected=connected)

    def decode(self, latents: Tensor, context: Any = None) -> Decoded:
        """Latents → images. The context holds the encoder's features of what is visible; None: latents alone."""
        return Decoded(self.decoder(latents, context))
