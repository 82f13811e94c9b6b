"""CVQ-VAE: little-used codes are drawn to where the latents are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from arcvq.quantizers import CVQConfig
from arcvq.systems.registry import System, register


@register("cvq-vae")
@dataclass(kw_only=True)
class CVQVAE(System):
    summary: ClassVar[str] = (
        "VQ-VAE with cosine selection whose little-used codes are moved onto latents after every step"
    )
    citation: ClassVar[str] = "Zheng and Vedaldi, Online Clustered Codebook, ICCV 2023"
    quantizer_name: ClassVar[str] = "cvq"
    quantizer: CVQConfig = field(default_factory=CVQConfig)
