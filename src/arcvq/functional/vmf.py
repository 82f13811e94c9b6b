"""The von Mises–Fisher distribution on the unit sphere of R^m: its mean, its KL divergence from uniform, its samples.

Davidson et al., Hyperspherical Variational Auto-Encoders, 2018; Wood, Simulation of the von Mises Fisher distribution, 1994.
Whatever depends on κ is computed in float64: in float32 the Bessel functions underflow in many dimensions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from arcvq.errors import ArcvqError
from arcvq.functional.similarity import unit

# Steps of the recurrence down from the order of the uniform expansion, whose three terms are good to 1e-9 from order 32 on.
RECURRENCE_STEPS = 32
# Proposals drawn at once. Each is accepted with a probability above 0.65 for every m and κ: all are rejected at most once in 10^7.
PROPOSALS = 16
# The integral of the implicit gradient: how many standard deviations it covers, its points, and the tanh-sinh variable's range.
REACH_DEVIATIONS, QUADRATURE_POINTS, QUADRATURE_SPAN = 32.0, 97, 3.2
# κ above this multiple of m counts as large.
LARGE_KAPPA = 100


def check_sphere_dim(dim: int) -> None:
    """Raise if the sphere of a von Mises-Fisher distribution has fewer than 2 dimensions."""
    if dim < 2:
        raise ArcvqError(f"a sphere needs at least 2 dimensions, got {dim}")


@torch.no_grad()
def bessel_ratio(kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The length A of the mean vector, and log S of the normaliser, in float64 for κ > 0. With ν = m/2 − 1:

    A     = I_{ν+1}(κ) / I_ν(κ)
    log S = log [ Γ(ν+1) (κ/2)^{−ν} I_ν(κ) ], which is 0 at κ = 0 and has no cancellation anywhere

    At the order n = ν + RECURRENCE_STEPS both come from the uniform expansion (Olver). From there the recurrence
    r_k = κ / (2(k+1) + κ r_{k+1}), all of whose terms are positive, leads down to ν.
    """
    check_sphere_dim(dim)
    kappa = kappa.to(torch.float64)
    order = dim / 2 - 1
    ratio, log_s = _uniform_expansion(kappa, order + RECURRENCE_STEPS)
    for k in reversed(range(RECURRENCE_STEPS)):
        twice = 2 * (order + k + 1)
        log_s = log_s + torch.log1p(kappa * ratio / twice)
        ratio = kappa / (twice + kappa * ratio)
    return ratio, log_s


def vmf_kl(kappa: Tensor, dim: int) -> Tensor:
    """KL(vMF(·, κ) ‖ uniform) = κA − log S, in float64.

    Its derivative is set in closed form, κA′ with A′ = 1 − A² − (m−1)A/κ: autograd sees no Bessel function.
    """
    mean, log_s = bessel_ratio(kappa.detach(), dim)
    fixed = kappa.detach().to(torch.float64)
    return _with_slope(fixed * mean - log_s, kappa, fixed * vmf_variance(fixed, mean, dim))


def vmf_variance(kappa: Tensor, mean: Tensor, dim: int) -> Tensor:
    """The variance of μ·z, which is also A′(κ). For large κ, where 1 − A² cancels, from the expansion of A in 1/κ."""
    near = 1 - mean.square() - (dim - 1) * mean / kappa
    far = (dim - 1) / (2 * kappa.square()) * (1 - (dim - 3) / (2 * kappa) * (1 + 1.5 / kappa))
    return torch.where(kappa > LARGE_KAPPA * dim, far, near)


def sample_vmf(direction: Tensor, kappa: Tensor, implicit: bool = False) -> Tensor:
    """One sample z for each row: unit rows μ = direction (N, m), κ (N,) → unit rows (N, m), differentiable in both.

    z = wμ + √(1 − w²) v, with w from Wood's scheme and v uniform among the directions orthogonal to μ. A fixed number of proposals
    is drawn at once and the first accepted one used, so there is no loop.
    """
    cosine = sample_cosine(kappa, direction.shape[-1], implicit).to(direction.dtype).unsqueeze(-1)  # (N, 1)
    noise = torch.randn_like(direction)
    tangent = unit(noise - (noise * direction).sum(dim=-1, keepdim=True) * direction)
    return cosine * direction + (1 - cosine.square()).clamp(min=torch.finfo(cosine.dtype).tiny).sqrt() * tangent


def sample_cosine(kappa: Tensor, dim: int, implicit: bool = False) -> Tensor:
    """Samples of the cosine w = μ·z (N,), of density ∝ e^{κw} (1 − w²)^{(m−3)/2}, in float64.

    The gradient in κ is that of the accepted proposal (as published; it leaves out how κ changes the acceptance), or, with
    `implicit`, the exact one.
    """
    check_sphere_dim(dim)
    kappa = kappa.to(torch.float64)
    # The same b as (−2κ + √(4κ² + (m−1)²)) / (m−1), without its cancellation.
    b = ((dim - 1) / (2 * kappa + (4 * kappa.square() + (dim - 1) ** 2).sqrt())).unsqueeze(1)
    with torch.no_grad():
        shape = torch.full((kappa.shape[0], PROPOSALS), (dim - 1) / 2, dtype=torch.float64, device=kappa.device)
        one, other = torch._standard_gamma(shape), torch._standard_gamma(shape)
        beta = one / (one + other)  # (N, PROPOSALS)
        proposed = _propose_cosine(beta, b)
        centre = (1 - b) / (1 + b)
        tilt = kappa.unsqueeze(1) * (proposed - centre)
        score = tilt + (dim - 1) * (torch.log1p(-centre * proposed) - torch.log1p(-centre.square()))
        accepted = score >= torch.rand_like(score).log()
        first = accepted.to(torch.int8).argmax(dim=1, keepdim=True)  # the first proposal when none is accepted
        beta = beta.gather(1, first)
    cosine = _propose_cosine(beta, b).squeeze(1).clamp(-1, 1)
    return _with_slope(cosine.detach(), kappa, implicit_slope(cosine, kappa, dim)) if implicit else cosine


@torch.no_grad()
def implicit_slope(cosine: Tensor, kappa: Tensor, dim: int) -> Tensor:
    """The exact derivative dw/dκ = −∂_κF(w) / f(w) at a fixed quantile: ∫ |t − A| f(t) / f(w) dt over the tail beyond w."""
    if dim < 3:
        raise ArcvqError("the implicit gradient needs at least 3 dimensions: on a circle the density has poles")
    mean, _ = bessel_ratio(kappa, dim)
    spread = vmf_variance(kappa.to(torch.float64), mean, dim).sqrt()
    outward = torch.where(cosine > mean, 1.0, -1.0).to(torch.float64)
    reach = torch.minimum(1 - outward * cosine, REACH_DEVIATIONS * spread)
    # Tanh-sinh quadrature, dense at both ends: at w, where the density may fall steeply, and at its end, where it may be a root.
    s = torch.linspace(-QUADRATURE_SPAN, QUADRATURE_SPAN, QUADRATURE_POINTS, dtype=torch.float64, device=cosine.device)
    fraction = torch.sigmoid(math.pi * s.sinh())  # of the reach
    weights = math.pi * s.cosh() * fraction * (1 - fraction) * (2 * QUADRATURE_SPAN / (QUADRATURE_POINTS - 1))
    t = cosine.unsqueeze(1) + (outward * reach).unsqueeze(1) * fraction
    inside, edge = ((1 - each.square()).clamp(min=torch.finfo(torch.float64).tiny) for each in (t, cosine.unsqueeze(1)))
    log_f = kappa.unsqueeze(1) * (t - cosine.unsqueeze(1)) + (dim - 3) / 2 * (inside.log() - edge.log())
    integrand = (t - mean.unsqueeze(1)).abs() * log_f.exp() * weights
    return reach * integrand.sum(dim=1)


def _propose_cosine(beta: Tensor, b: Tensor) -> Tensor:
    """Wood's proposal for the cosine w, from a beta-distributed number."""
    return (1 - (1 + b) * beta) / (1 - (1 - b) * beta)


def _with_slope(value: Tensor, x: Tensor, slope: Tensor) -> Tensor:
    """`value` with a gradient: its derivative in x is `slope`."""
    return value + slope * (x - x.detach()).to(value.dtype)


def _uniform_expansion(kappa: Tensor, order: float) -> tuple[Tensor, Tensor]:
    """(I_{n+1}(κ) / I_n(κ), log S_n) at a large order n, for any κ (DLMF 10.41)."""
    z = kappa / order
    s = (1 + z.square()).sqrt()
    rise = z.square() / (s + 1)  # s − 1
    value = _olver_u(1 / s, order)
    # I′_n / I_n = (s/z) · V/U, and I_{n+1} = I′_n − (n/κ) I_n.
    ratio = (rise + s * (_olver_v(1 / s, order) / value - 1)) / z
    log_s = order * (rise - torch.log1p(rise / 2)) - 0.5 * s.log() + (value / _olver_u(torch.ones_like(s), order)).log()
    return ratio, log_s


def _olver_u(t: Tensor, order: float) -> Tensor:
    """U = Σ_k u_k(t) / n^k, of the uniform expansion of I_n."""
    t2 = t.square()
    u1 = t * (3 - 5 * t2) / 24
    u2 = t2 * (81 - 462 * t2 + 385 * t2**2) / 1152
    u3 = t * t2 * (30375 - 369603 * t2 + 765765 * t2**2 - 425425 * t2**3) / 414720
    return 1 + u1 / order + u2 / order**2 + u3 / order**3


def _olver_v(t: Tensor, order: float) -> Tensor:
    """V = Σ_k v_k(t) / n^k, of the uniform expansion of I′_n."""
    t2 = t.square()
    v1 = t * (-9 + 7 * t2) / 24
    v2 = t2 * (-135 + 594 * t2 - 455 * t2**2) / 1152
    v3 = t * t2 * (-42525 + 451737 * t2 - 883575 * t2**2 + 475475 * t2**3) / 414720
    return 1 + v1 / order + v2 / order**2 + v3 / order**3
