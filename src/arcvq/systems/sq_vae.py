"""SQ-VAE: VQ-VAE whose latents draw their codes, trained on an ELBO."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from arcvq.objectives import LikelihoodConfig
from arcvq.quantizers import SQConfig
from arcvq.systems.registry import System, register


@register("sq-vae")
@dataclass(kw_only=True)
class SQVAE(System):
    summary: ClassVar[str] = (
        "codes drawn at random in training, with a learnt variance that anneals itself; the likeliest in use"
    )
    citation: ClassVar[str] = (
        "Takida et al., SQ-VAE: Variational Bayes on Discrete Representation with Self-annealed Stochastic Quantization, ICML 2022"
    )
    quantizer_name: ClassVar[str] = "sq"
    quantizer: SQConfig = field(default_factory=SQConfig)
    objective: LikelihoodConfig = field(default_factory=LikelihoodConfig)
