"""Hyperspherical VAE: a continuous bottleneck on the sphere, for comparison. It has no tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from arcvq.objectives import LikelihoodConfig
from arcvq.quantizers import VonMisesFisherConfig
from arcvq.systems.registry import System, register


@register("hyperspherical-vae")
@dataclass(kw_only=True)
class HypersphericalVAE(System):
    summary: ClassVar[str] = (
        "a VAE on the unit sphere: von Mises–Fisher posterior, uniform prior; reconstructs, does not encode"
    )
    citation: ClassVar[str] = "Davidson et al., Hyperspherical Variational Auto-Encoders, UAI 2018"
    quantizer_name: ClassVar[str] = "vmf"
    quantizer: VonMisesFisherConfig = field(default_factory=VonMisesFisherConfig)
    objective: LikelihoodConfig = field(default_factory=LikelihoodConfig)
