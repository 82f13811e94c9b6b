"""The bottleneck of a variational autoencoder: a Gaussian posterior with learned mean and variance, a standard normal prior.

Kingma and Welling, Auto-Encoding Variational Bayes, 2014.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcvq.functional import gaussian_kl
from arcvq.quantizers.continuous import Continuous


class Gaussian(Continuous):
    """`Gaussian(dim=64, latent_dim=64)`: z = μ + σ·noise in training, μ in evaluation. Options: see ContinuousConfig."""

    def posterior_parameter_count(self) -> int:
        return 2 * self.config.latent_dim

    def posterior(self, parameters: Tensor, sample: bool) -> tuple[Tensor, Tensor]:
        mean, log_variance = parameters.chunk(2, dim=1)
        log_variance = log_variance.clamp(-30, 20)  # beyond this one image's loss dominates the batch, or is not finite
        z = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean) if sample else mean
        return z, gaussian_kl(mean, log_variance)
