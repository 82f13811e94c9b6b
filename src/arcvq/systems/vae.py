"""VAE and hyperspherical VAE: continuous bottlenecks, for comparison. They have no tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from arcvq.objectives import LikelihoodConfig
from arcvq.quantizers import ContinuousConfig, VonMisesFisherConfig
from arcvq.systems.registry import System, register


@register("vae")
@dataclass(kw_only=True)
class VAE(System):
    summary: ClassVar[str] = "a Gaussian vector for each image instead of tokens; reconstructs, does not encode"
    citation: ClassVar[str] = "Kingma and Welling, Auto-Encoding Variational Bayes, ICLR 2014"
    quantizer_name: ClassVar[str] = "gaussian"
    quantizer: ContinuousConfig = field(default_factory=ContinuousConfig)
    objective: LikelihoodConfig = field(default_factory=LikelihoodConfig)


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
