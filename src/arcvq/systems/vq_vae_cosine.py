"""VQ-VAE with codes chosen by angle."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from arcvq.functional import Metric
from arcvq.quantizers import VQConfig
from arcvq.systems.registry import System, register


@dataclass(kw_only=True)
class CosineVQConfig(VQConfig):
    """VQ with the cosine rule and everything else as it was: the paper's control for what the angle alone does."""

    metric: Metric = "cosine"


@register("vq-vae-cosine")
@dataclass(kw_only=True)
class CosineVQVAE(System):
    summary: ClassVar[str] = "VQ-VAE whose codes are chosen by angle; raw codes and raw losses"
    citation: ClassVar[str] = "Kim and Yoo, ArcVQ-VAE, arXiv 2605.13517, appendix: effect of cosine similarity matching"
    quantizer_name: ClassVar[str] = "vq"
    quantizer: CosineVQConfig = field(default_factory=CosineVQConfig)
