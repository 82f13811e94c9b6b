"""Codes as running means of their latents (van den Oord et al. 2017, appendix A.1)."""

from __future__ import annotations

import torch
from torch import Tensor


def smoothed_counts(counts: Tensor, epsilon: float) -> Tensor:
    """Laplace smoothing of running counts (K,): (N_k + ε) / (ΣN + Kε) · ΣN. Their sum does not change."""
    total = counts.sum()
    return (counts + epsilon) / (total + counts.shape[0] * epsilon).clamp(min=torch.finfo(counts.dtype).tiny) * total


@torch.no_grad()
def ema_update_(
    codebook: Tensor, counts: Tensor, sums: Tensor, new_counts: Tensor, new_sums: Tensor, decay: float, epsilon: float
) -> None:
    """Update running counts (K,), sums (K, D) and the codebook of their means (K, D) in place by one step's counts and sums.

    N ← d·N + (1−d)·n,  m ← d·m + (1−d)·Σz,  e = m / Ñ. The smoothed count Ñ is not stored: stored in N, the smoothing would add
    up. A code without new tokens keeps every bit (smoothing would move it to the origin), while its count and sum decay alike.
    """
    counts.lerp_(new_counts.to(counts.dtype), 1 - decay)
    sums.lerp_(new_sums.to(sums.dtype), 1 - decay)
    means = sums / smoothed_counts(counts, epsilon).unsqueeze(1)
    codebook.copy_(torch.where((new_counts > 0).unsqueeze(1), means.to(codebook.dtype), codebook))
