"""Stochastic quantization (SQ-VAE, Takida et al., 2022): each token draws its code; the smaller σ², the likelier the nearest."""

from __future__ import annotations

import torch
from torch import Tensor

from arcvq.functional.precision import matmul


def code_logits(latents: Tensor, codebook: Tensor, precision: Tensor) -> Tensor:
    """The logits of each token's codes, −Σ_d (z_d − e_d)² / (2σ_d²) up to a constant per token: (N, D), (K, D) → (N, K).

    precision is 1/σ²: one number, (N, 1), or (N, D).
    """
    if precision.dim() == 2 and precision.shape[1] > 1:
        return matmul(precision * latents, codebook.t()) - 0.5 * matmul(precision, codebook.square().t())
    return precision * (matmul(latents, codebook.t()) - 0.5 * codebook.square().sum(dim=1))


def negative_entropy(logits: Tensor) -> Tensor:
    """Σ_k p log p of each row's p = softmax(logits): 0 when one-hot, −log K when uniform."""
    log_p = torch.log_softmax(logits, dim=1)
    return (log_p.exp() * log_p).sum(dim=1)
