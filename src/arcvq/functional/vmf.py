"""The von Mises–Fisher law on the unit sphere of R^m: its mean, its divergence from uniform, its samples.

Davidson et al., Hyperspherical Variational Auto-Encoders, 2018; Wood, Simulation of the von Mises Fisher distribution, 1994.
Everything about κ is float64: in float32 the Bessel functions of a wide sphere are zero.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from arcvq.errors import ArcvqError
from arcvq.functional.similarity import unit

# Orders climbed before the uniform expansion is used: at ν ≥ 32 its three terms are good to 1e-9.
CLIMB = 32
# Draws side by side. Each is accepted with a probability above 0.65 for every m and κ: all fail once in 10^7 or more rarely.
PROPOSALS = 16
# Of the integral behind the implicit gradient: how many standard deviations it reaches out, and its points, and how far out those go
# before the map that crowds them at the ends.
REACH, NODES, SPAN = 32.0, 97, 3.2
# From so many times m on, κ is far out.
FAR = 100


def check_sphere(dim: int) -> None:
    if dim < 2:
        raise ArcvqError(f"a sphere needs at least 2 dimensions, got {dim}")


@torch.no_grad()
def bessel_ratio(kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """(A, log S) in float64 for κ > 0, with ν = m/2 − 1:

    A     = I_{ν+1}(κ) / I_ν(κ), the length of the mean vector
    log S = log [ Γ(ν+1) (κ/2)^{−ν} I_ν(κ) ], which is 0 at κ = 0 and has no cancellation anywhere

    Far up, at the order n = ν + CLIMB, both come from the uniform expansion (Olver); the way down is the recurrence
    r_k = κ / (2(k+1) + κ r_{k+1}), all of whose terms are positive.
    """
    check_sphere(dim)
    kappa = kappa.to(torch.float64)
    order = dim / 2 - 1
    ratio, log_s = _uniform_expansion(kappa, order + CLIMB)
    for k in reversed(range(CLIMB)):
        twice = 2 * (order + k + 1)
        log_s = log_s + torch.log1p(kappa * ratio / twice)
        ratio = kappa / (twice + kappa * ratio)
    return ratio, log_s


def vmf_kl(kappa: Tensor, dim: int) -> Tensor:
    """KL(vMF(·, κ) ‖ uniform) = κA − log S, in float64; dKL/dκ = κA′ with A′ = 1 − A² − (m−1)A/κ.

    The slope is given, not found: nothing is differentiated through a Bessel function.
    """
    mean, log_s = bessel_ratio(kappa.detach(), dim)
    fixed = kappa.detach().to(torch.float64)
    return _with_slope(fixed * mean - log_s, kappa, fixed * vmf_variance(fixed, mean, dim))


def vmf_variance(kappa: Tensor, mean: Tensor, dim: int) -> Tensor:
    """A′(κ), which is also the variance of μ·z. Far out, where 1 − A² cancels, from the expansion of A in 1/κ."""
    near = 1 - mean.square() - (dim - 1) * mean / kappa
    far = (dim - 1) / (2 * kappa.square()) * (1 - (dim - 3) / (2 * kappa) * (1 + 1.5 / kappa))
    return torch.where(kappa > FAR * dim, far, near)


def sample_vmf(direction: Tensor, kappa: Tensor, implicit: bool = False) -> Tensor:
    """One z for each row: direction (N, m) of unit rows, κ (N,) → (N, m), unit rows, differentiable in both.

    z = wμ + √(1 − w²) v, with w from Wood's scheme and v uniform among the directions orthogonal to μ. A fixed number of proposals
    is drawn at once and the first accepted one taken: no loop that waits for the last row.
    """
    cosine = sample_cosine(kappa, direction.shape[-1], implicit).to(direction.dtype).unsqueeze(-1)  # (N, 1)
    noise = torch.randn_like(direction)
    tangent = unit(noise - (noise * direction).sum(dim=-1, keepdim=True) * direction)
    return cosine * direction + (1 - cosine.square()).clamp(min=torch.finfo(cosine.dtype).tiny).sqrt() * tangent


def sample_cosine(kappa: Tensor, dim: int, implicit: bool = False) -> Tensor:
    """w = μ·z (N,), of density ∝ e^{κw} (1 − w²)^{(m−3)/2}, in float64.

    The gradient in κ is that of the accepted proposal (as published: it leaves out how κ moves what is accepted), or, with
    `implicit`, the exact one.
    """
    check_sphere(dim)
    kappa = kappa.to(torch.float64)
    # The same b as (−2κ + √(4κ² + (m−1)²)) / (m−1), without its cancellation.
    b = ((dim - 1) / (2 * kappa + (4 * kappa.square() + (dim - 1) ** 2).sqrt())).unsqueeze(1)
    with torch.no_grad():
        shape = torch.full((kappa.shape[0], PROPOSALS), (dim - 1) / 2, dtype=torch.float64, device=kappa.device)
        one, other = torch._standard_gamma(shape), torch._standard_gamma(shape)
        beta = one / (one + other)  # (N, PROPOSALS)
        proposed = _proposal(beta, b)
        centre = (1 - b) / (1 + b)
        tilt = kappa.unsqueeze(1) * (proposed - centre)
        score = tilt + (dim - 1) * (torch.log1p(-centre * proposed) - torch.log1p(-centre.square()))
        accepted = score >= torch.rand_like(score).log()
        first = accepted.to(torch.int8).argmax(dim=1, keepdim=True)  # none: the first proposal
        beta = beta.gather(1, first)
    cosine = _proposal(beta, b).squeeze(1).clamp(-1, 1)
    return _with_slope(cosine.detach(), kappa, implicit_slope(cosine, kappa, dim)) if implicit else cosine


@torch.no_grad()
def implicit_slope(cosine: Tensor, kappa: Tensor, dim: int) -> Tensor:
    """dw/dκ = −∂_κF(w) / f(w) at fixed F(w): the integral of |t − A| f(t) / f(w) over the tail that begins at w."""
    if dim < 3:
        raise ArcvqError("the implicit gradient needs at least 3 dimensions: on a circle the density has poles")
    mean, _ = bessel_ratio(kappa, dim)
    spread = vmf_variance(kappa.to(torch.float64), mean, dim).sqrt()
    outward = torch.where(cosine > mean, 1.0, -1.0).to(torch.float64)
    reach = torch.minimum(1 - outward * cosine, REACH * spread)
    # Points that crowd at both ends (tanh-sinh): at w, where the density may fall steeply, and where it may end like a root.
    s = torch.linspace(-SPAN, SPAN, NODES, dtype=torch.float64, device=cosine.device)
    share = torch.sigmoid(math.pi * s.sinh())  # of the reach
    weights = math.pi * s.cosh() * share * (1 - share) * (2 * SPAN / (NODES - 1))
    t = cosine.unsqueeze(1) + (outward * reach).unsqueeze(1) * share
    inside, edge = ((1 - each.square()).clamp(min=torch.finfo(torch.float64).tiny) for each in (t, cosine.unsqueeze(1)))
    log_f = kappa.unsqueeze(1) * (t - cosine.unsqueeze(1)) + (dim - 3) / 2 * (inside.log() - edge.log())
    integrand = (t - mean.unsqueeze(1)).abs() * log_f.exp() * weights
    return reach * integrand.sum(dim=1)


def _proposal(beta: Tensor, b: Tensor) -> Tensor:
    return (1 - (1 + b) * beta) / (1 - (1 - b) * beta)


def _with_slope(value: Tensor, x: Tensor, slope: Tensor) -> Tensor:
    """value, with dvalue/dx = slope."""
    return value + slope * (x - x.detach()).to(value.dtype)


def _uniform_expansion(kappa: Tensor, order: float) -> tuple[Tensor, Tensor]:
    """(I_{n+1}/I_n, log S_n) for a large order n, uniformly in κ (DLMF 10.41)."""
    z = kappa / order
    s = (1 + z.square()).sqrt()
    rise = z.square() / (s + 1)  # s − 1
    value = _olver(1 / s, order)
    # I′_n / I_n = (s/z) · V/U, and I_{n+1} = I′_n − (n/κ) I_n.
    ratio = (rise + s * (_olver_derivative(1 / s, order) / value - 1)) / z
    log_s = order * (rise - torch.log1p(rise / 2)) - 0.5 * s.log() + (value / _olver(torch.ones_like(s), order)).log()
    return ratio, log_s


def _olver(t: Tensor, order: float) -> Tensor:
    t2 = t.square()
    u1 = t * (3 - 5 * t2) / 24
    u2 = t2 * (81 - 462 * t2 + 385 * t2**2) / 1152
    u3 = t * t2 * (30375 - 369603 * t2 + 765765 * t2**2 - 425425 * t2**3) / 414720
    return 1 + u1 / order + u2 / order**2 + u3 / order**3


def _olver_derivative(t: Tensor, order: float) -> Tensor:
    t2 = t.square()
    v1 = t * (-9 + 7 * t2) / 24
    v2 = t2 * (-135 + 594 * t2 - 455 * t2**2) / 1152
    v3 = t * t2 * (-42525 + 451737 * t2 - 883575 * t2**2 + 475475 * t2**3) / 414720
    return 1 + v1 / order + v2 / order**2 + v3 / order**3
