"""One level of a stack of autoencoders: halves the sides. After Williams et al., Hierarchical Quantized Autoencoders, NeurIPS 2020."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from arcvq.errors import ArcvqError
from arcvq.nets.autoencoder import Autoencoder, AutoencoderConfig, Decoded
from arcvq.nets.resampling import Upsample2x
from arcvq.nets.small import SmallConfig, residual_stack


@dataclass(kw_only=True)
class StackedConfig(SmallConfig):
    """The small autoencoder's options for every level of a stack; beyond them:

    layers  number of levels; each halves the sides. `width` is the top one's, half of it one below
    """

    layers: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.layers <= 16:
            raise ArcvqError(f"autoencoder.layers must be from 2 to 16, got {self.layers}")
        if self.width % 2**self.layers:
            raise ArcvqError(f"autoencoder.width must be a multiple of {2**self.layers}, got {self.width}")

    @property
    def downsampling(self) -> int:
        return 2**self.layers

    def of_level(self, level: int) -> SmallConfig:
        """The options of one level, counted from the lowest."""
        return SmallConfig(
            width=self.width >> (self.layers - 1 - level),
            residual_blocks=self.residual_blocks,
            residual_width=self.residual_width,
            latent_dim=self.latent_dim,
            skip_activated=self.skip_activated,
        )


class LevelEncoder(nn.Sequential):
    """(B, C, H, W) → (B, latent_dim, H/2, W/2)."""

    def __init__(self, channels: int, config: SmallConfig) -> None:
        width = config.width
        super().__init__(
            nn.Conv2d(channels, width // 2, 3, stride=2, padding=1),  # H/2
            nn.Mish(),
            nn.Conv2d(width // 2, width, 3, padding=1),
            nn.Mish(),
            residual_stack(config),
            nn.Conv2d(width, config.latent_dim, 1),
        )


class LevelDecoder(nn.Sequential):
    """(B, latent_dim, h, w) → (B, C, 2h, 2w)."""

    def __init__(self, channels: int, config: SmallConfig) -> None:
        width = config.width
        super().__init__(
            nn.Conv2d(config.latent_dim, width, 3, padding=1),
            nn.Mish(),
            residual_stack(config),
            Upsample2x(),  # 2h
            nn.Conv2d(width, width // 2, 3, padding=1),
            nn.Mish(),
            nn.Conv2d(width // 2, channels, 3, padding=1),
        )


class StackedAutoencoder(Autoencoder):
    """The top level. The levels below hold quantizers, so they belong to the tokenizer (arcvq.tokenizers.stacked)."""

    Config: ClassVar[type[AutoencoderConfig]] = StackedConfig

    def __init__(self, channels: int, config: StackedConfig) -> None:
        super().__init__(channels, config)
        top = config.of_level(config.layers - 1)
        self.encoder = LevelEncoder(config.latent_dim, top)
        self.decoder = LevelDecoder(config.latent_dim, top)

    def encode(self, images: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        """Standardized latents of the level below → latents."""
        return self.encoder(images), None

    def decode(self, latents: Tensor, context: Any = None) -> Decoded:
        return Decoded(self.decoder(latents))

    @property
    def last_layer(self) -> Tensor:
        last = self.decoder[-1]
        assert isinstance(last, nn.Conv2d)
        return last.weight

    @property
    def maps_per_pixel(self) -> int:
        assert isinstance(self.config, StackedConfig)
        return self.config.width

    def modules_to_compile(self) -> list[nn.Module]:
        return [self.encoder, self.decoder]
