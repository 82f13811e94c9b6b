"""The interface of an autoencoder: an encoder and a decoder, nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from arcvq.errors import ArcvqError


class Decoded(NamedTuple):
    images: Tensor  # (B, C, H, W), not clamped
    extra: Mapping[str, Tensor] = {}  # a likelihood's other channels, where a network has them


@dataclass(kw_only=True)
class AutoencoderConfig:
    """What every autoencoder has.

    latent_dim  D, the width of the latents
    """

    latent_dim: int = 64

    @property
    def downsampling(self) -> int:
        """How many times smaller the latents' sides are than the image's."""
        raise NotImplementedError

    def check_range(self, low: int, high: int, *names: str) -> None:
        """Raise unless these options are None or from `low` to `high`, so that no file can ask for a network of any size."""
        for name in names:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ArcvqError(f"autoencoder.{name} must be from {low} to {high}, got {value}")


class Autoencoder(nn.Module):
    """Images (B, C, H, W) → latents (B, D, h, w) → images. It knows neither quantizers nor training.

    `encode` also returns a context: what the decoder needs besides the latents and no token carries (None for most).
    """

    Config: ClassVar[type[AutoencoderConfig]] = AutoencoderConfig
    takes_mask: ClassVar[bool] = False  # whether `encode` takes a mask (B, 1, H, W), True where the image is defective
    fixed_size: ClassVar[bool] = False  # whether images of another size than the training images' make no sense to it

    def __init__(self, channels: int, config: AutoencoderConfig) -> None:
        super().__init__()
        if channels < 1:
            raise ArcvqError(f"channels must be at least 1, got {channels}")
        self.channels, self.config = channels, config
        self.latent_dim, self.downsampling = config.latent_dim, config.downsampling

    def encode(self, images: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        """Images (B, C, H, W) → latents (B, D, h, w), and the context of the decoder."""
        raise NotImplementedError

    def decode(self, latents: Tensor, context: Any = None) -> Decoded:
        """Latents (B, D, h, w) → images, not clamped."""
        raise NotImplementedError

    @property
    def last_layer(self) -> Tensor:
        """The decoder's last weight, at which an adaptive adversarial weight compares gradients."""
        raise NotImplementedError

    @property
    def maps_per_pixel(self) -> int:
        """An upper bound on the values of one activation per pixel of the image, from which the batch size follows."""
        raise NotImplementedError

    def modules_to_compile(self) -> list[nn.Module]:
        """The modules that are compiled for inference, each on its own."""
        raise NotImplementedError
