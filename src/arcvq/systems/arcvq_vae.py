"""ArcVQ-VAE: VQ-VAE under the spherical angular-margin prior."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from arcvq.quantizers import ArcVQConfig
from arcvq.systems.registry import System, register


@register("arcvq-vae")
@dataclass(kw_only=True)
class ArcVQVAE(System):
    summary: ClassVar[str] = (
        "cosine selection, unit-sphere start, a norm ball that grows with training, and the ArcLoss"
    )
    citation: ClassVar[str] = (
        "Kim and Yoo, ArcVQ-VAE: A Spherical Vector Quantization Framework with ArcCosine Additive Margin, arXiv 2605.13517"
    )
    quantizer_name: ClassVar[str] = "arcvq"
    quantizer: ArcVQConfig = field(default_factory=ArcVQConfig)
