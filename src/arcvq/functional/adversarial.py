"""Losses of a discriminator and of the network it judges, as means over the logits given. An empty batch gives 0."""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from arcvq.errors import ArcvqError
from arcvq.functional.precision import compute_dtype

AdversarialKind = Literal["hinge", "logistic"]
LARGEST_WEIGHT = 1e4  # of the adaptive weight


def discriminator_loss(real_logits: Tensor, fake_logits: Tensor, kind: AdversarialKind = "hinge") -> Tensor:
    """What a discriminator learns from.

    hinge:     ½ (mean relu(1 − D(x)) + mean relu(1 + D(x̂)))
    logistic:  mean softplus(−D(x)) + mean softplus(D(x̂))
    """
    check_kind(kind)
    real, fake = _full(real_logits), _full(fake_logits)
    if kind == "hinge":
        return 0.5 * (_mean(F.relu(1 - real)) + _mean(F.relu(1 + fake)))
    return _mean(F.softplus(-real)) + _mean(F.softplus(fake))


def generator_loss(fake_logits: Tensor, kind: AdversarialKind = "hinge") -> Tensor:
    """What makes reconstructions look real to the discriminator: −mean D(x̂) with hinge, mean softplus(−D(x̂)) with logistic."""
    check_kind(kind)
    fake = _full(fake_logits)
    return -_mean(fake) if kind == "hinge" else _mean(F.softplus(-fake))


def r1_penalty(real_logits: Tensor, images: Tensor) -> Tensor:
    """The mean over images of ‖∂ΣD(x)/∂x‖² (Mescheder et al., 2018), to be weighted with γ/2. The images must require a gradient.

    It is a function of the discriminator's parameters that can be differentiated once more.
    """
    (gradient,) = torch.autograd.grad(real_logits.sum(), images, create_graph=True)
    return _mean(_full(gradient).square().flatten(1).sum(dim=1))


def lecam(real_logits: Tensor, fake_logits: Tensor, real_average: Tensor, fake_average: Tensor) -> Tensor:
    """Keeps a discriminator near its past (Tseng et al., 2021): mean relu(D(x) − m_fake)² + mean relu(m_real − D(x̂))².

    The averages are decayed running means of the logits of real images and of reconstructions.
    """
    real, fake = _full(real_logits), _full(fake_logits)
    above = F.relu(real - fake_average.detach()).square()
    below = F.relu(real_average.detach() - fake).square()
    return _mean(above) + _mean(below)


def adaptive_weight(
    reconstruction_norm: Tensor, adversarial_norm: Tensor, largest: float = LARGEST_WEIGHT, epsilon: float = 1e-4
) -> Tensor:
    """How much the adversarial term weighs, so that its gradient is as long as the reconstruction's: their ratio, detached."""
    ratio = _full(reconstruction_norm.detach()) / (_full(adversarial_norm.detach()) + epsilon)
    return ratio.clamp(0.0, largest)


def ramp(step: Tensor, start: int, length: int = 0) -> Tensor:
    """0 until step `start`, then a line to 1 over `length` steps; with a length of 0, 1 from `start` on."""
    passed = _full(step - start)
    return (passed / length).clamp(0, 1) if length else (passed >= 0).to(passed.dtype)


def check_kind(kind: str) -> None:
    """Raise unless this is a known kind of adversarial loss."""
    if kind not in get_args(AdversarialKind):
        raise ArcvqError(f"unknown adversarial loss {kind!r}: expected one of {', '.join(get_args(AdversarialKind))}")


def _full(values: Tensor) -> Tensor:
    """Values in float32; float64 stays."""
    return values.to(compute_dtype(values))


def _mean(values: Tensor) -> Tensor:
    """The mean; 0 without values."""
    return values.sum() / max(1, values.numel())
