"""VQ-VAE with a gradient that turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from arcvq.quantizers import VQConfig
from arcvq.systems.registry import System, register


@dataclass(kw_only=True)
class RotationVQConfig(VQConfig):
    """VQ with the rotation trick in the place of straight-through."""

    estimator: Literal["straight-through", "rotation"] = "rotation"


@register("vq-vae-rotation")
@dataclass(kw_only=True)
class RotationVQVAE(System):
    summary: ClassVar[str] = (
        "VQ-VAE whose gradient is turned and scaled with the latent instead of passed straight through"
    )
    citation: ClassVar[str] = "Fifty et al., Restructuring Vector Quantization with the Rotation Trick, ICLR 2025"
    quantizer_name: ClassVar[str] = "vq"
    quantizer: RotationVQConfig = field(default_factory=RotationVQConfig)
