"""The systems: rows of the tables by name. Each is data: what it is, where it comes from, and the settings it begins with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class System:
    """summary   in one line
    citation  where it comes from
    defaults  settings that lie below those of a preset: what makes it this system. Sizes (levels, codes) and lengths are a preset's
    kinds     sections in which another kind is refused; elsewhere another kind drops the default one's settings
    """

    summary: str
    citation: str
    defaults: Mapping[str, Any]
    kinds: tuple[str, ...] = ()

    @property
    def task(self) -> str:
        """The task that trains it."""
        return str(self.defaults.get("task", "tokenizer"))


VQ_VAE = "van den Oord et al., Neural Discrete Representation Learning, NeurIPS 2017"
VIT_VQGAN = "Yu et al., Vector-quantized Image Modeling with Improved VQGAN, ICLR 2022"

# What the systems for large images share: VQGAN's autoencoder, L1 and LPIPS, a discriminator, and Adam's betas.
PHOTOS: dict[str, Any] = {
    "autoencoder": {"kind": "vqgan"},
    "objective": {"kind": "perceptual"},
    "adversarial": {"discriminator": {"kind": "patch"}},
    "training": {"betas": [0.5, 0.9]},
}
NO_ATTENTION = {"kind": "vqgan", "attention": [], "middle_attention": False}
UNIT_CODES = {"kind": "vq", "metric": "cosine", "output": "unit", "loss_space": "unit", "init": "normal"}

SYSTEMS: dict[str, System] = {
    "arcvq-vae": System(
        "cosine selection, unit-sphere init, a norm ball that grows with training, and the ArcLoss",
        "Kim and Yoo, ArcVQ-VAE: A Spherical Vector Quantization Framework with ArcCosine Additive Margin, arXiv 2605.13517",
        {"quantizer": {"kind": "arcvq"}},
    ),
    "cvq-vae": System(
        "VQ-VAE with cosine selection; little-used codes are moved onto latents after every step",
        "Zheng and Vedaldi, Online Clustered Codebook, ICCV 2023",
        {"quantizer": {"kind": "cvq"}},
    ),
    "fsq": System(
        "each channel is squashed and rounded; the codebook is a fixed grid",
        "Mentzer et al., Finite Scalar Quantization: VQ-VAE Made Simple, ICLR 2024",
        {"quantizer": {"kind": "fsq"}},
    ),
    "hvq-vae": System(
        "two stacked autoencoders with codes drawn at random, the upper one trained on the lower one's latents",
        "Williams et al., Hierarchical Quantized Autoencoders, NeurIPS 2020",
        {"task": "stacked", "autoencoder": {"kind": "stacked"}, "quantizer": {"kind": "hvq"}},
        kinds=("autoencoder", "quantizer"),
    ),
    "hyperspherical-vae": System(
        "a VAE on the unit sphere: von Mises-Fisher posterior, uniform prior; reconstructs, does not encode",
        "Davidson et al., Hyperspherical Variational Auto-Encoders, UAI 2018",
        {"quantizer": {"kind": "vmf"}, "objective": {"kind": "reconstruction", "reconstruction": "likelihood"}},
    ),
    "lfq": System(
        "the sign of each channel; the codebook is the corners of a cube, kept in use by an entropy term",
        "Yu et al., Language Model Beats Diffusion: Tokenizer is Key to Visual Generation, ICLR 2024",
        {"quantizer": {"kind": "lfq"}},
    ),
    "simvq": System(
        "VQ-VAE whose codebook is a frozen random basis times one learned linear layer",
        "Zhu et al., Addressing Representation Collapse in Vector Quantized Models with One Linear Layer, arXiv 2411.02038",
        {"quantizer": {"kind": "simvq"}},
    ),
    "sq-vae": System(
        "codes drawn at random in training, with a learned variance that anneals itself; the likeliest code in use",
        "Takida et al., SQ-VAE: Variational Bayes on Discrete Representation with Self-annealed Stochastic Quantization, ICML 2022",
        {"quantizer": {"kind": "sq"}, "objective": {"kind": "reconstruction", "reconstruction": "likelihood"}},
    ),
    "vae": System(
        "a Gaussian vector for each image instead of tokens; reconstructs, does not encode",
        "Kingma and Welling, Auto-Encoding Variational Bayes, ICLR 2014",
        {"quantizer": {"kind": "gaussian"}, "objective": {"kind": "reconstruction", "reconstruction": "likelihood"}},
    ),
    "vq-vae": System(
        "nearest code by distance, straight-through gradient, codebook trained by the optimizer",
        VQ_VAE,
        {"quantizer": {"kind": "vq"}},
    ),
    "vq-vae-cosine": System(
        "VQ-VAE whose codes are chosen by angle; raw codes and raw losses",
        "Kim and Yoo, ArcVQ-VAE, arXiv 2605.13517, appendix: effect of cosine similarity matching",
        {"quantizer": {"kind": "vq", "metric": "cosine"}},
    ),
    "vq-vae-ema": System(
        "VQ-VAE whose codes are running means of their tokens; no gradient trains them",
        f"{VQ_VAE}, appendix A.1",
        {"quantizer": {"kind": "emavq"}},
    ),
    "vq-vae-rotation": System(
        "VQ-VAE whose gradient is rotated and scaled with the latent instead of passed straight through",
        "Fifty et al., Restructuring Vector Quantization with the Rotation Trick, ICLR 2025",
        {"quantizer": {"kind": "vq", "estimator": "rotation"}},
    ),
    "arcvq-vqgan": System(
        "VQGAN with the quantizer of ArcVQ-VAE",
        "Kim and Yoo, ArcVQ-VAE: A Spherical Vector Quantization Framework with ArcCosine Additive Margin, arXiv 2605.13517",
        {**PHOTOS, "quantizer": {"kind": "arcvq", "arc": {"decay": 1e-4}, "ball": {"alpha": 1e-5}}},
    ),
    "arcvq-vqgan-plus": System(
        "our recipe for large images: VQGAN+'s trunk and training with the quantizer of ArcVQ-VAE",
        "Weber et al., MaskBit: Embedding-free Image Generation via Bit Tokens, TMLR 2024 (its VQGAN+). The prior: Kim and Yoo, "
        "ArcVQ-VAE, arXiv 2605.13517",
        {
            "autoencoder": {**NO_ATTENTION, "decoder_blocks": 2},
            "objective": {"kind": "perceptual", "l1": 0.0, "l2": 1.0},
            "adversarial": {
                "discriminator": {"kind": "patch", "norm": "group", "blur": True},
                "weight": 0.1,
                "adaptive": False,
                "lecam": 0.001,
            },
            "quantizer": {"kind": "arcvq", "arc": {"match_run": "imagenet"}, "ball": {"match_run": "imagenet"}},
            "training": {
                "betas": [0.9, 0.999],
                "weight_decay": 1e-4,
                "schedule": "cosine",
                "gradient_clip": 1.0,
                "ema": 0.999,
            },
        },
    ),
    "cvq-vqgan": System(
        "VQGAN whose little-used codes are moved onto latents after every step",
        "Zheng and Vedaldi, Online Clustered Codebook, ICCV 2023",
        {**PHOTOS, "quantizer": {"kind": "cvq"}},
    ),
    "df-vqgan": System(
        "VQGAN that keeps a defective region out of what the visible one becomes; it can in-paint",
        "Ni et al., NÜWA-LIP: Language-guided Image Inpainting with Defect-free VQGAN, CVPR 2023",
        {**PHOTOS, "autoencoder": {"kind": "dfvqgan"}, "quantizer": {"kind": "vq"}, "masks": {}},
        kinds=("autoencoder",),
    ),
    "movq": System(
        "VQGAN with several tokens per position from one codebook, and a decoder that the quantized latents modulate",
        "Zheng et al., MoVQ: Modulating Quantized Vectors for High-Fidelity Image Generation, NeurIPS 2022",
        {**PHOTOS, "autoencoder": {"kind": "movq", "latent_dim": 256}, "quantizer": {"kind": "multichannel"}},
    ),
    "rq-vae": System(
        "several codes per position, each chosen for what the ones before it leave over",
        "Lee et al., Autoregressive Image Generation using Residual Quantization, CVPR 2022",
        {
            **PHOTOS,
            "objective": {"kind": "perceptual", "l1": 0.0, "l2": 1.0},
            "adversarial": {
                "discriminator": {"kind": "patch", "layers": 2},
                "weight": 0.75,
                "discriminator_weight": 0.75,
            },
            "quantizer": {"kind": "residual", "codebook": {"kind": "emavq", "restart": {}}},
        },
    ),
    "seq-gan": System(
        "VQGAN in two phases: first all of it, for what is in the image; then the decoder alone, for detail",
        "Gu et al., Rethinking the Objectives of Vector-Quantized Tokenizers for Image Synthesis, arXiv 2212.03185",
        {
            **PHOTOS,
            "autoencoder": {**NO_ATTENTION, "latent_dim": 256},
            "objective": {"kind": "perceptual", "semantic": [0.9, 0.1]},
            "adversarial": {"discriminator": {"kind": "patch"}, "weight": 0.1, "adaptive": False},
            "quantizer": {"kind": "vq", "entropy": {}},
            "decoder_last": 1 / 3,
        },
    ),
    "vit-vqgan": System(
        "transformers as encoder and decoder, and unit codes",
        VIT_VQGAN,
        {
            "autoencoder": {"kind": "vit", "likelihood": True},
            "objective": {"kind": "perceptual", "l1": 0.0, "l2": 0.25, "perceptual": 0.1, "laplace": 0.1},
            "adversarial": {
                "discriminator": {"kind": "stylegan"},
                "loss": "logistic",
                "weight": 0.1,
                "adaptive": False,
                "r1": 40.0,
            },
            "quantizer": UNIT_CODES,
            "training": {"betas": [0.9, 0.99], "weight_decay": 1e-4},
        },
    ),
    "vqgan": System(
        "convolutions and attention trained with L1, LPIPS and a discriminator",
        "Esser et al., Taming Transformers for High-Resolution Image Synthesis, CVPR 2021",
        {**PHOTOS, "quantizer": {"kind": "vq"}},
    ),
    "vqgan-ema": System(
        "VQGAN whose codes are running means of their tokens",
        f"{VQ_VAE}, appendix A.1, in VQGAN",
        {**PHOTOS, "quantizer": {"kind": "emavq"}},
    ),
    "vqgan-fc": System(
        "VQGAN with narrow unit codes",
        f"{VIT_VQGAN} (its factorized, l2-normalized codes)",
        {**PHOTOS, "autoencoder": {"kind": "vqgan", "latent_dim": 8}, "quantizer": UNIT_CODES},
    ),
    "vqgan-lc": System(
        "VQGAN whose codes are frozen features of images behind one learned linear layer",
        "Zhu et al., Scaling the Codebook Size of VQGAN to 100,000 with a Utilization Rate of 99%, NeurIPS 2024",
        {
            **PHOTOS,
            "autoencoder": {"kind": "vqgan", "latent_dim": 8},
            "adversarial": {"discriminator": {"kind": "patch", "layers": 2}, "weight": 0.1},
            "quantizer": {
                "kind": "projected",
                "features": "vgg16",
                "codebook_weight": 0.033,
                "commitment_weight": 0.1,
            },
        },
    ),
    "gpt": System(
        "a prior: a transformer that predicts a tokenizer's tokens one after another",
        "Esser et al., Taming Transformers for High-Resolution Image Synthesis, CVPR 2021. The annealed order: Yu et al., Randomized "
        "Autoregressive Visual Generation, arXiv 2411.00776",
        {"task": "prior", "prior": {"kind": "gpt"}},
    ),
    "ldm": System(
        "a prior: diffusion over a tokenizer's latents, which become codes before they are decoded",
        "Rombach et al., High-Resolution Image Synthesis with Latent Diffusion Models, CVPR 2022",
        {"task": "prior", "prior": {"kind": "ldm"}},
    ),
    "pixelcnn": System(
        "a prior: gated convolutions that predict a tokenizer's tokens one after another",
        "van den Oord et al., Conditional Image Generation with PixelCNN Decoders, NeurIPS 2016",
        {"task": "prior", "prior": {"kind": "pixelcnn"}},
    ),
    "rq-transformer": System(
        "a prior for several tokens per position: one transformer over positions, and one over a position's tokens",
        "Lee et al., Autoregressive Image Generation using Residual Quantization, CVPR 2022",
        {"task": "prior", "prior": {"kind": "rq-transformer"}},
    ),
    "maskgit": System(
        "a prior: a transformer that predicts all masked tokens at once, sampled in a few steps; also for several tokens per position",
        "Chang et al., MaskGIT: Masked Generative Image Transformer, CVPR 2022. The Halton order: Besnier et al., Halton Scheduler for "
        "Masked Generative Image Transformer, ICLR 2025",
        {"task": "prior", "prior": {"kind": "maskgit"}},
    ),
}
