"""VQGAN's autoencoder with a decoder that the quantized latents modulate. After Zheng et al., MoVQ, NeurIPS 2022."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from arcvq.functional.group_norm import Activation
from arcvq.nets.autoencoder import AutoencoderConfig
from arcvq.nets.norm import GroupNorm
from arcvq.nets.vqgan import VqganAutoencoder, VqganConfig, VqganDecoder


@dataclass(kw_only=True)
class MovqConfig(VqganConfig):
    """VQGAN's options, with 16× down by default; beyond them:

    condition_conv  each norm of the decoder first convolves (3×3) the quantized latents, resized to its features
    """

    latent_dim: int = 256
    multipliers: tuple[int, ...] = (1, 1, 2, 2, 4)
    attention: tuple[int, ...] = (16,)
    condition_conv: bool = False


class ModulatedNorm(nn.Module):
    """GroupNorm whose result is scaled and shifted by 1×1 convolutions of the quantized latents, at each position of its own."""

    def __init__(self, channels: int, activation: Activation, config: MovqConfig) -> None:
        super().__init__()
        self.norm = GroupNorm(channels, config.groups)
        self.conv = nn.Conv2d(config.latent_dim, config.latent_dim, 3, padding=1) if config.condition_conv else None
        self.gamma = nn.Conv2d(config.latent_dim, channels, 1)
        self.beta = nn.Conv2d(config.latent_dim, channels, 1)
        self.activation = activation

    def forward(self, x: Tensor, quantized: Tensor) -> Tensor:
        """Features (B, C, H, W) and quantized latents (B, latent_dim, h, w) → (B, C, H, W)."""
        if self.conv is not None:
            quantized = self.conv(F.interpolate(quantized, size=x.shape[2:], mode="nearest"))
        # A 1×1 convolution of the small map, resized, is that of the resized map.
        gamma, beta = (
            F.interpolate(conv(quantized), size=x.shape[2:], mode="nearest") for conv in (self.gamma, self.beta)
        )
        y = self.norm(x) * gamma + beta
        return F.silu(y) if self.activation == "silu" else y


class MovqAutoencoder(VqganAutoencoder):
    """VQGAN's encoder, and a decoder whose every norm sees the quantized latents."""

    Config: ClassVar[type[AutoencoderConfig]] = MovqConfig
    config: MovqConfig

    def make_decoder(self) -> nn.Module:
        def make_norm(channels: int, activation: Activation) -> nn.Module:
            return ModulatedNorm(channels, activation, self.config)

        return VqganDecoder(self.channels, self.config, make_norm, conditional=True)
