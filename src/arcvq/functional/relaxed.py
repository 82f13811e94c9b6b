"""Random draws of codes and their differentiable relaxation, the Gumbel softmax (Jang et al., ICLR 2017)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from arcvq.functional.precision import compute_dtype, matmul, without_autocast


def distance_logits(latents: Tensor, codebook: Tensor) -> Tensor:
    """Minus the squared distances −‖z − e‖² of latents (N, D) and codes (K, D): (N, K), in float32, never positive."""
    with without_autocast(latents):
        dtype = compute_dtype(latents)
        z, e = latents.to(dtype), codebook.to(dtype)
        squares = z.square().sum(dim=1, keepdim=True) + e.square().sum(dim=1)
        return (2 * matmul(z, e.t()) - squares).clamp(max=0)


def gumbel(like: Tensor) -> Tensor:
    """Gumbel noise of this shape: argmax(logits + noise) is a draw from softmax(logits)."""
    return -torch.empty_like(like).exponential_().clamp(min=torch.finfo(like.dtype).tiny).log()


def relaxed_one_hot(logits: Tensor, temperature: Tensor | float, noise: Tensor) -> Tensor:
    """The relaxed draw softmax((logits + noise) / temperature) over codes; one-hot as the temperature goes to 0."""
    return torch.softmax((logits + noise) / temperature, dim=-1)


def divergence_from_uniform(log_p: Tensor) -> Tensor:
    """KL(p ‖ uniform) of each row, Σ p (log p + log K): 0 when uniform, log K when one-hot."""
    return (log_p.exp() * log_p).sum(dim=-1) + math.log(log_p.shape[-1])
