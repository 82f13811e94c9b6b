"""VQ-VAE, the plain baseline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from arcvq.quantizers import VQConfig
from arcvq.systems.registry import System, register


@register("vq-vae")
@dataclass(kw_only=True)
class VQVAE(System):
    summary: ClassVar[str] = "nearest code by distance, straight-through gradient, codebook trained by the optimizer"
    citation: ClassVar[str] = "van den Oord et al., Neural Discrete Representation Learning, NeurIPS 2017"
    quantizer_name: ClassVar[str] = "vq"
    quantizer: VQConfig = field(default_factory=VQConfig)
