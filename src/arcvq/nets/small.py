"""The small convolutional autoencoder of the paper's MNIST and CIFAR-10 models: 4× down, 4× up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from arcvq.errors import ArcvqError
from arcvq.nets.autoencoder import Autoencoder, AutoencoderConfig, Decoded
from arcvq.nets.convolutions import PointConv2d, WindowConv2d, WindowConvTranspose2d


@dataclass(kw_only=True)
class SmallConfig(AutoencoderConfig):
    """width           channels at the latent's resolution (half of it one level up)
    residual_blocks  in the encoder and again in the decoder
    residual_width   channels inside a residual block
    skip_activated   the skip path carries relu(x) instead of x, as an in-place relu in the original code made it
    """

    width: int = 128
    residual_blocks: int = 2
    residual_width: int = 32
    skip_activated: bool = True

    def __post_init__(self) -> None:
        for name in ("width", "residual_width", "latent_dim"):
            if getattr(self, name) < 1 or (name == "width" and self.width % 2):
                raise ArcvqError(f"{name} must be positive (and width even), got {getattr(self, name)}")
        if not 0 <= self.residual_blocks <= 256:
            raise ArcvqError(f"residual_blocks must be from 0 to 256, got {self.residual_blocks}")

    @property
    def downsampling(self) -> int:
        return 4


class ResidualBlock(nn.Module):
    """ReLU, 3×3 convolution, ReLU, 1×1 convolution; added to the input, or with `skip_activated` to the input after its ReLU."""

    def __init__(self, width: int, inner: int, skip_activated: bool) -> None:
        super().__init__()
        self.conv3 = nn.Conv2d(width, inner, 3, padding=1)
        self.conv1 = nn.Conv2d(inner, width, 1)
        self.skip_activated = skip_activated

    def forward(self, x: Tensor) -> Tensor:
        activated = F.relu(x)
        update = self.conv1(F.relu(self.conv3(activated)))
        return (activated if self.skip_activated else x) + update


def residual_stack(config: SmallConfig) -> nn.Sequential:
    """The residual blocks of one side, and a ReLU."""
    blocks = [
        ResidualBlock(config.width, config.residual_width, config.skip_activated) for _ in range(config.residual_blocks)
    ]
    return nn.Sequential(*blocks, nn.ReLU())


class SmallEncoder(nn.Sequential):
    """(B, C, H, W) in [-1, 1] → latents (B, latent_dim, H/4, W/4)."""

    def __init__(self, channels: int, config: SmallConfig) -> None:
        width = config.width
        super().__init__(
            WindowConv2d(channels, width // 2),  # H/2
            nn.ReLU(),
            nn.Conv2d(width // 2, width, 4, stride=2, padding=1),  # H/4
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            residual_stack(config),
            PointConv2d(width, config.latent_dim),
        )


class SmallDecoder(nn.Sequential):
    """Quantized latents (B, latent_dim, h, w) → (B, C, 4h, 4w), not squashed."""

    def __init__(self, channels: int, config: SmallConfig) -> None:
        width = config.width
        super().__init__(
            nn.Conv2d(config.latent_dim, width, 3, padding=1),
            residual_stack(config),
            nn.ConvTranspose2d(width, width // 2, 4, stride=2, padding=1),  # 2h
            nn.ReLU(),
            WindowConvTranspose2d(width // 2, channels),  # 4h
        )


class SmallAutoencoder(Autoencoder):
    """4× down, 4× up, with a few residual blocks on either side."""

    Config: ClassVar[type[AutoencoderConfig]] = SmallConfig

    def __init__(self, channels: int, config: SmallConfig) -> None:
        super().__init__(channels, config)
        self.encoder = SmallEncoder(channels, config)
        self.decoder = SmallDecoder(channels, config)

    def encode(self, images: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        return self.encoder(images), None

    def decode(self, latents: Tensor, context: Any = None) -> Decoded:
        return Decoded(self.decoder(latents))

    @property
    def last_layer(self) -> Tensor:
        last = self.decoder[-1]
        assert isinstance(last, nn.ConvTranspose2d)
        return last.weight

    @property
    def maps_per_pixel(self) -> int:
        assert isinstance(self.config, SmallConfig)
        return self.config.width

    def modules_to_compile(self) -> list[nn.Module]:
        return [self.encoder, self.decoder]
