"""The Gaussian posterior of a variational autoencoder (Kingma and Welling, Auto-Encoding Variational Bayes, 2014)."""

from __future__ import annotations

import torch
from torch import Tensor


def gaussian_kl(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(μ, σ²) ‖ N(0, 1)) of each row, ½ Σ (μ² + σ² − log σ² − 1): (N, d) → (N,)."""
    return 0.5 * (mean.square() + torch.expm1(log_variance) - log_variance).sum(dim=-1)
