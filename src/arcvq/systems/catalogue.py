"""The systems that differ in little but their quantizer. hvq_vae.py has the one with an autoencoder of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from arcvq.functional import Metric
from arcvq.objectives import LikelihoodConfig
from arcvq.quantizers import (
    ArcVQConfig,
    ContinuousConfig,
    CVQConfig,
    EMAVQConfig,
    FSQConfig,
    LFQConfig,
    SimVQConfig,
    SQConfig,
    VonMisesFisherConfig,
    VQConfig,
)
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
    summary: ClassVar[str] = "VQ-VAE whose gradient is rotated and scaled with the latent, not passed straight through"
    citation: ClassVar[str] = "Fifty et al., Restructuring Vector Quantization with the Rotation Trick, ICLR 2025"
    quantizer_name: ClassVar[str] = "vq"
    quantizer: RotationVQConfig = field(default_factory=RotationVQConfig)


@register("vq-vae-ema")
@dataclass(kw_only=True)
class EMAVQVAE(System):
    summary: ClassVar[str] = "VQ-VAE whose codes are running means of their tokens; no gradient trains them"
    citation: ClassVar[str] = "van den Oord et al., Neural Discrete Representation Learning, NeurIPS 2017, appendix A.1"
    quantizer_name: ClassVar[str] = "emavq"
    quantizer: EMAVQConfig = field(default_factory=EMAVQConfig)


@register("arcvq-vae")
@dataclass(kw_only=True)
class ArcVQVAE(System):
    summary: ClassVar[str] = "cosine selection, unit-sphere start, a norm ball that grows in training, and the ArcLoss"
    citation: ClassVar[str] = (
        "Kim and Yoo, ArcVQ-VAE: A Spherical Vector Quantization Framework with ArcCosine Additive Margin, arXiv 2605.13517"
    )
    quantizer_name: ClassVar[str] = "arcvq"
    quantizer: ArcVQConfig = field(default_factory=ArcVQConfig)


@register("cvq-vae")
@dataclass(kw_only=True)
class CVQVAE(System):
    summary: ClassVar[str] = "VQ-VAE with cosine selection; little-used codes move onto latents after every step"
    citation: ClassVar[str] = "Zheng and Vedaldi, Online Clustered Codebook, ICCV 2023"
    quantizer_name: ClassVar[str] = "cvq"
    quantizer: CVQConfig = field(default_factory=CVQConfig)


@register("simvq")
@dataclass(kw_only=True)
class SimVQVAE(System):
    summary: ClassVar[str] = "VQ-VAE whose codebook is a frozen random basis times one learned linear layer"
    citation: ClassVar[str] = (
        "Zhu et al., Addressing Representation Collapse in Vector Quantized Models with One Linear Layer, arXiv 2411.02038"
    )
    quantizer_name: ClassVar[str] = "simvq"
    quantizer: SimVQConfig = field(default_factory=SimVQConfig)


@register("sq-vae")
@dataclass(kw_only=True)
class SQVAE(System):
    summary: ClassVar[str] = "codes drawn at random in training, with a learned variance that anneals itself"
    citation: ClassVar[str] = (
        "Takida et al., SQ-VAE: Variational Bayes on Discrete Representation with Self-annealed Stochastic Quantization, ICML 2022"
    )
    quantizer_name: ClassVar[str] = "sq"
    quantizer: SQConfig = field(default_factory=SQConfig)
    objective: LikelihoodConfig = field(default_factory=LikelihoodConfig)


@register("fsq")
@dataclass(kw_only=True)
class FSQTokenizer(System):
    summary: ClassVar[str] = "each channel squashed and rounded; the codebook is a grid that nobody trains"
    citation: ClassVar[str] = "Mentzer et al., Finite Scalar Quantization: VQ-VAE Made Simple, ICLR 2024"
    quantizer_name: ClassVar[str] = "fsq"
    quantizer: FSQConfig = field(default_factory=FSQConfig)


@register("lfq")
@dataclass(kw_only=True)
class LFQTokenizer(System):
    summary: ClassVar[str] = "the sign of each channel; the codes are a cube's corners, kept in use by an entropy term"
    citation: ClassVar[str] = (
        "Yu et al., Language Model Beats Diffusion: Tokenizer is Key to Visual Generation, ICLR 2024"
    )
    quantizer_name: ClassVar[str] = "lfq"
    quantizer: LFQConfig = field(default_factory=LFQConfig)


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
    summary: ClassVar[str] = "a VAE on the unit sphere (von Mises-Fisher posterior, uniform prior); it has no tokens"
    citation: ClassVar[str] = "Davidson et al., Hyperspherical Variational Auto-Encoders, UAI 2018"
    quantizer_name: ClassVar[str] = "vmf"
    quantizer: VonMisesFisherConfig = field(default_factory=VonMisesFisherConfig)
    objective: LikelihoodConfig = field(default_factory=LikelihoodConfig)
