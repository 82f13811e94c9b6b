"""Stochastic quantization: each token draws its code, and training differentiates a softened draw (Jang et al., ICLR 2017)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from arcvq.functional.precision import compute_dtype, matmul, without_autocast


def distance_logits(latents: Tensor, codebook: Tensor) -> Tensor:
    """−‖z − e‖² of latents (N, D) and codebook (K, D): (N, K), in float32, never above zero."""
    with without_autocast(latents):
        dtype = compute_dtype(latents)
        z, e = latents.to(dtype), codebook.to(dtype)
        squares = z.square().sum(dim=1, keepdim=True) + e.square().sum(dim=1)
        return (2 * matmul(z, e.t()) - squares).clamp(max=0)


def gumbel(like: Tensor) -> Tensor:
    """Noise under which argmax(logits + noise) is a draw from softmax(logits)."""
    return -torch.empty_like(like).exponential_().clamp(min=torch.finfo(like.dtype).tiny).log()


def relaxed_one_hot(logits: Tensor, temperature: Tensor | float, noise: Tensor) -> Tensor:
    """softmax((logits + noise) / τ) over codes: a one-hot draw as τ → 0."""
    return torch.softmax((logits + noise) / temperature, dim=-1)


def divergence_from_uniform(log_p: Tensor) -> Tensor:
    """KL(p ‖ uniform) = Σ p (log p + log K) for each row: 0 when uniform, log K when one-hot."""
    return (log_p.exp() * log_p).sum(dim=-1) + math.log(log_p.shape[-1])
