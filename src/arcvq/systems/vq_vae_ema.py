"""VQ-VAE whose codes are running means of their tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from arcvq.quantizers import EMAVQConfig
from arcvq.systems.registry import System, register


@register("vq-vae-ema")
@dataclass(kw_only=True)
class EMAVQVAE(System):
    summary: ClassVar[str] = "VQ-VAE whose codes are running means of their tokens; no gradient trains them"
    citation: ClassVar[str] = "van den Oord et al., Neural Discrete Representation Learning, NeurIPS 2017, appendix A.1"
    quantizer_name: ClassVar[str] = "emavq"
    quantizer: EMAVQConfig = field(default_factory=EMAVQConfig)
