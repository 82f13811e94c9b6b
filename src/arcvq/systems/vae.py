"""VAE: a continuous bottleneck, for comparison. It has no tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from arcvq.objectives import LikelihoodConfig
from arcvq.quantizers import ContinuousConfig
from arcvq.systems.registry import System, register


@register("vae")
@dataclass(kw_only=True)
class VAE(System):
    summary: ClassVar[str] = "a Gaussian vector for each image instead of tokens; reconstructs, does not encode"
    citation: ClassVar[str] = "Kingma and Welling, Auto-Encoding Variational Bayes, ICLR 2014"
    quantizer_name: ClassVar[str] = "gaussian"
    quantizer: ContinuousConfig = field(default_factory=ContinuousConfig)
    objective: LikelihoodConfig = field(default_factory=LikelihoodConfig)
