"""Noise that is added to values step by step, and DDIM, which takes it away. After Song et al., Denoising Diffusion Implicit Models,
ICLR 2021, with the noise schedule of latent diffusion."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from arcvq.errors import ArcvqError

# Times of the training, and the first and last variance of the noise that one of them adds.
TIMES = 1000
FIRST_BETA, LAST_BETA = 0.0015, 0.0195


def signal_shares() -> Tensor:
    """ᾱ of each time, float64 (TIMES,) on the CPU: the share of the variance that is not noise. √β rises linearly."""
    first, last = math.sqrt(FIRST_BETA), math.sqrt(LAST_BETA)
    betas = torch.linspace(first, last, TIMES, dtype=torch.float64, device="cpu").square()
    return (1 - betas).cumprod(0)


def add_noise(values: Tensor, noise: Tensor, share: Tensor) -> Tensor:
    """√ᾱ · values + √(1 − ᾱ) · noise; ᾱ is (B,)."""
    share = share.reshape(-1, *[1] * (values.dim() - 1))
    return share.sqrt() * values + (1 - share).sqrt() * noise


def ddim_times(steps: int) -> list[int]:
    """The times at which DDIM asks for the noise, from late to early: every (TIMES/steps)-th, beginning with 1."""
    check_steps(steps, "steps")
    return list(range(1, TIMES, TIMES // steps))[::-1]


def check_steps(steps: int, option: str) -> None:
    """Raise unless this number of steps divides the times evenly."""
    # One step would take pure noise for an image of time 1; with as many as there are times, the last would be at time TIMES.
    if not 2 <= steps <= TIMES // 2 or TIMES % steps:
        allowed = [each for each in range(2, TIMES // 2 + 1) if TIMES % each == 0]
        raise ArcvqError(f"{option} must be one of {', '.join(map(str, allowed))}, got {steps}")


def ddim_step(
    noisy: Tensor, noise: Tensor, share: float, next_share: float, eta: float, fresh: Tensor | None
) -> Tensor:
    """From ᾱ = share to ᾱ′ = next_share: the values without the predicted noise, with less of it.

    σ = η √((1 − ᾱ′)/(1 − ᾱ) · (1 − ᾱ/ᾱ′)) of the noise is drawn anew: `fresh`, which is not read if eta is 0.
    """
    values = (noisy - math.sqrt(1 - share) * noise) / math.sqrt(share)
    sigma = eta * math.sqrt((1 - next_share) / (1 - share) * (1 - share / next_share))
    found = math.sqrt(next_share) * values + math.sqrt(1 - next_share - sigma**2) * noise
    return found if fresh is None or not sigma else found + sigma * fresh
