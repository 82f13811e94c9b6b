"""SimVQ: the codebook is a frozen basis behind one learned linear layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from arcvq.quantizers import SimVQConfig
from arcvq.systems.registry import System, register


@register("simvq")
@dataclass(kw_only=True)
class SimVQVAE(System):
    summary: ClassVar[str] = "VQ-VAE whose codebook is a frozen random basis times one learned linear layer"
    citation: ClassVar[str] = (
        "Zhu et al., Addressing Representation Collapse in Vector Quantized Models with One Linear Layer, arXiv 2411.02038"
    )
    quantizer_name: ClassVar[str] = "simvq"
    quantizer: SimVQConfig = field(default_factory=SimVQConfig)
