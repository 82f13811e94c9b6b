"""Codes as running means of their tokens (van den Oord et al. 2017, appendix A.1)."""

from __future__ import annotations

import torch
from torch import Tensor


def smoothed_counts(counts: Tensor, epsilon: float) -> Tensor:
    """Laplace smoothing of running counts (K,): (N_k + ε) / (ΣN + Kε) · ΣN. The total stays what it was."""
    total = counts.sum()
    return (counts + epsilon) / (total + counts.shape[0] * epsilon).clamp(min=torch.finfo(counts.dtype).tiny) * total


@torch.no_grad()
def ema_update_(
    codebook: Tensor, counts: Tensor, sums: Tensor, new_counts: Tensor, new_sums: Tensor, decay: float, epsilon: float
) -> None:
    """N ← d·N + (1−d)·n,  m ← d·m + (1−d)·Σz,  e = m / Ñ; codebook and sums (K, D), counts (K,), all in place.

    Ñ, the smoothed count, divides and is forgotten: fed back into N it would add up. A code that no token took keeps its place
    to the bit (smoothing would pull it to the origin as its count fades), while its count and sum fade alike.
    """
    counts.lerp_(new_counts.to(counts.dtype), 1 - decay)
    sums.lerp_(new_sums.to(sums.dtype), 1 - decay)
    means = sums / smoothed_counts(counts, epsilon).unsqueeze(1)
    codebook.copy_(torch.where((new_counts > 0).unsqueeze(1), means.to(codebook.dtype), codebook))
