"""The convolutional autoencoder of VQGAN. After Esser et al., Taming Transformers for High-Resolution Image Synthesis, CVPR 2021."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from arcvq.errors import ArcvqError
from arcvq.functional.group_norm import Activation
from arcvq.nets.autoencoder import Autoencoder, AutoencoderConfig, Decoded
from arcvq.nets.blocks import Downsample, NormFactory, ResidualBlock, Stack, Upsample, apply_norm
from arcvq.nets.convolutions import FeatureConv2d
from arcvq.nets.norm import GroupNorm


@dataclass(kw_only=True)
class VqganConfig(AutoencoderConfig):
    """width             channels at the image's size
    multipliers       of the width, one per level; each level after the first halves the sides
    blocks            residual blocks in each level of the encoder
    decoder_blocks    in each level of the decoder; None: one more than in the encoder
    attention         downsampling factors at which a self-attention follows each block
    middle_attention  self-attention between the two blocks at the latents' size
    z_channels        channels between the trunk and the 1×1 convolutions around the quantizer; None: latent_dim
    groups            of each GroupNorm
    checkpointing     compute activations again in the backward pass instead of keeping them: slower, with less memory
    """

    latent_dim: int = 16
    width: int = 128
    multipliers: tuple[int, ...] = (1, 2, 2, 4)
    blocks: int = 2
    decoder_blocks: int | None = None
    attention: tuple[int, ...] = (8,)
    middle_attention: bool = True
    z_channels: int | None = None
    groups: int = 32
    checkpointing: bool = False

    def __post_init__(self) -> None:
        self.check_range(1, 2**14, "latent_dim", "z_channels")
        self.check_range(1, 2**12, "width", "groups")
        self.check_range(1, 32, "blocks", "decoder_blocks")
        if not 1 <= len(self.multipliers) <= 8 or not all(1 <= each <= 32 for each in self.multipliers):
            raise ArcvqError(
                f"autoencoder.multipliers must be 1 to 8 numbers from 1 to 32, got {list(self.multipliers)}"
            )
        if self.width * max(self.multipliers) > 2**13:
            raise ArcvqError(
                f"autoencoder.width times its largest multiplier must be at most {2**13}, got "
                f"{self.width} × {max(self.multipliers)}"
            )
        if self.width % self.groups:
            raise ArcvqError(
                f"autoencoder.width must be a multiple of autoencoder.groups, got {self.width} and {self.groups}"
            )
        if any(factor not in [2**level for level in range(11)] for factor in self.attention):
            raise ArcvqError(f"autoencoder.attention must be powers of two up to 1024, got {list(self.attention)}")

    @property
    def downsampling(self) -> int:
        return 2 ** (len(self.multipliers) - 1)

    @property
    def widths(self) -> list[int]:
        """Channels of each level."""
        return [self.width * multiplier for multiplier in self.multipliers]

    def has_attention(self, level: int) -> bool:
        """Whether self-attention follows the blocks of this level."""
        return 2**level in self.attention

    def group_norm(self, channels: int, activation: Activation) -> nn.Module:
        """A GroupNorm with these groups."""
        return GroupNorm(channels, self.groups, activation=activation)


class VqganEncoder(nn.Module):
    """(B, C, H, W) → latents (B, latent_dim, h, w)."""

    block: ClassVar[type[ResidualBlock]] = ResidualBlock
    downsample: ClassVar[type[Downsample]] = Downsample

    def __init__(self, channels: int, config: VqganConfig, make_norm: NormFactory) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = config.width
        for level, width in enumerate(config.widths):
            if level:
                layers.append(self.downsample(inputs))
            for _ in range(config.blocks):
                layers.append(self.block(inputs, width, make_norm, config.has_attention(level)))
                inputs = width
        z_channels = config.z_channels or config.latent_dim
        self.conv_in = FeatureConv2d(channels, config.width, 3, padding=1)
        self.layers = Stack(layers, config.checkpointing)
        self.middle = Stack(middle_blocks(self.block, inputs, config, make_norm), config.checkpointing)
        self.norm_out = make_norm(inputs, "silu")
        self.conv_out = nn.Conv2d(inputs, z_channels, 3, padding=1)
        self.quant_conv = nn.Conv2d(z_channels, config.latent_dim, 1)

    def forward(self, images: Tensor) -> Tensor:
        x = self.middle(self.layers(self.conv_in(images)))
        return self.quant_conv(self.conv_out(self.norm_out(x)))


class VqganDecoder(nn.Module):
    """Quantized latents (B, latent_dim, h, w) → (B, C, H, W), not squashed.

    With `conditional` every norm also takes the quantized latents.
    """

    def __init__(self, channels: int, config: VqganConfig, make_norm: NormFactory, conditional: bool = False) -> None:
        super().__init__()
        self.conditional = conditional
        layers, outputs = self.make_layers(config, make_norm)
        inputs, z_channels = config.widths[-1], config.z_channels or config.latent_dim
        self.post_quant_conv = nn.Conv2d(config.latent_dim, z_channels, 1)
        self.conv_in = nn.Conv2d(z_channels, inputs, 3, padding=1)
        self.middle = Stack(middle_blocks(ResidualBlock, inputs, config, make_norm), config.checkpointing)
        self.layers = Stack(layers, config.checkpointing)
        self.norm_out = make_norm(outputs, "silu")
        self.conv_out = nn.Conv2d(outputs, channels, 3, padding=1)

    def make_layers(self, config: VqganConfig, make_norm: NormFactory) -> tuple[list[nn.Module], int]:
        """The layers from the latents' size to the image's, and the channels of the last."""
        blocks = config.blocks + 1 if config.decoder_blocks is None else config.decoder_blocks
        layers: list[nn.Module] = []
        inputs = config.widths[-1]
        for level, width in reversed(list(enumerate(config.widths))):
            for _ in range(blocks):
                layers.append(ResidualBlock(inputs, width, make_norm, config.has_attention(level)))
                inputs = width
            if level:
                layers.append(Upsample(inputs))
        return layers, inputs

    def forward(self, latents: Tensor) -> Tensor:
        condition = latents if self.conditional else None
        x = self.conv_in(self.post_quant_conv(latents))
        x = self.layers(self.middle(x, condition), condition)
        return self.conv_out(apply_norm(self.norm_out, x, condition))


def middle_blocks(
    block: type[ResidualBlock], width: int, config: VqganConfig, make_norm: NormFactory
) -> list[nn.Module]:
    """The two blocks at the latents' size, with self-attention between them."""
    return [block(width, width, make_norm, config.middle_attention), block(width, width, make_norm)]


class VqganAutoencoder(Autoencoder):
    """Residual blocks and self-attention; by default 8× down and 8× up."""

    Config: ClassVar[type[AutoencoderConfig]] = VqganConfig
    config: VqganConfig

    def __init__(self, channels: int, config: VqganConfig) -> None:
        super().__init__(channels, config)
        self.encoder = self.make_encoder()
        self.decoder = self.make_decoder()

    def make_encoder(self) -> VqganEncoder:
        """The encoder; a subclass may have another, and another decoder."""
        return VqganEncoder(self.channels, self.config, self.config.group_norm)

    def make_decoder(self) -> nn.Module:
        return VqganDecoder(self.channels, self.config, self.config.group_norm)

    def encode(self, images: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        return self.encoder(images), None

    def decode(self, latents: Tensor, context: Any = None) -> Decoded:
        return Decoded(self.decoder(latents))

    @property
    def last_layer(self) -> Tensor:
        last = self.decoder.conv_out
        assert isinstance(last, nn.Conv2d)
        return last.weight

    @property
    def maps_per_pixel(self) -> int:
        widths = self.config.widths
        wide = map(max, widths, [*widths[1:], 0])  # the decoder enters a level with the channels of the level below
        return max(self.config.width, *(math.ceil(width / 4**level) for level, width in enumerate(wide)))

    def modules_to_compile(self) -> list[nn.Module]:
        return [self.encoder, self.decoder]
