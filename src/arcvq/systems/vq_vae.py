"""VQ-VAE; the same with codes chosen by angle, and with a gradient that turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from arcvq.functional import Metric
from arcvq.quantizers import VQConfig
from arcvq.systems.registry import System, register


@register("vq-vae")
@dataclass(kw_only=True)
class VQVAE(System):
    summary: ClassVar[str] = "nearest code by distance, straight-through gradient, codebook trained by the optimizer"
    citation: ClassVar[str] = "van den Oord et al., Neural Discrete Representation Learning, NeurIPS 2017"
    quantizer_name: ClassVar[str] = "vq"
    quantizer: VQConfig = field(default_factory=VQConfig)


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


@dataclass(kw_only=True)
class RotationVQConfig(VQConfig):
    """VQ with the rotation trick in the place of straight-through."""

    estimator: Literal["straight-through", "rotation"] = "rotation"


@register("vq-vae-rotation")
@dataclass(kw_only=True)
class RotationVQVAE(System):
    summary: ClassVar[str] = (
        "VQ-VAE whose gradient is turned and scaled with the latent instead of passed straight through"
    )
    citation: ClassVar[str] = "Fifty et al., Restructuring Vector Quantization with the Rotation Trick, ICLR 2025"
    quantizer_name: ClassVar[str] = "vq"
    quantizer: RotationVQConfig = field(default_factory=RotationVQConfig)
