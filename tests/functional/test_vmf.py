"""The von Mises–Fisher distribution, against arbitrary precision and closed forms."""

import math

import mpmath
import pytest
import torch
from scipy import integrate, special, stats
from torch.autograd import gradcheck

from arcvq import ArcvqError
from arcvq.functional import sample_vmf, unit, vmf_kl
from arcvq.functional.vmf import bessel_ratio, implicit_slope, sample_cosine, vmf_variance

DIMENSIONS = (2, 3, 8, 64, 65, 512, 4096)
CONCENTRATIONS = (1e-2, 0.1, 1.0, 5.0, 20.0, 100.0, 1000.0, 1e4)


def exact_values(kappa: float, dim: int) -> tuple[mpmath.mpf, mpmath.mpf, mpmath.mpf]:
    """A, KL and dKL/dκ with fifty digits."""
    with mpmath.workdps(50):
        k, order = mpmath.mpf(kappa), mpmath.mpf(dim) / 2 - 1
        bessel = mpmath.besseli(order, k)
        mean = mpmath.besseli(order + 1, k) / bessel
        log_normaliser = order * mpmath.log(k) - (order + 1) * mpmath.log(2 * mpmath.pi) - mpmath.log(bessel)
        log_area = mpmath.log(2) + (order + 1) * mpmath.log(mpmath.pi) - mpmath.loggamma(order + 1)
        return mean, k * mean + log_normaliser + log_area, k * (1 - mean**2 - (dim - 1) * mean / k)


@pytest.mark.parametrize("dim", DIMENSIONS)
def test_mean_kl_and_slope_match_fifty_digits(dim: int) -> None:
    for value in CONCENTRATIONS:
        kappa = torch.tensor(value, dtype=torch.float64, requires_grad=True)
        mean, divergence, slope = exact_values(value, dim)
        kl = vmf_kl(kappa, dim)
        kl.backward()
        assert bessel_ratio(kappa, dim)[0].item() == pytest.approx(float(mean), rel=1e-14)
        assert kl.item() == pytest.approx(float(divergence), rel=1e-9, abs=1e-14)
        assert kappa.grad.item() == pytest.approx(float(slope), rel=1e-6)


def test_kl_has_known_values_in_64_dimensions() -> None:
    kappa = torch.tensor([1.0, 20.0, 100.0], dtype=torch.float64)
    expected = torch.tensor([0.0078097, 2.75469, 24.42953], dtype=torch.float64)
    torch.testing.assert_close(vmf_kl(kappa, 64), expected, rtol=1e-5, atol=1e-6)


def test_kl_in_three_dimensions_equals_closed_form() -> None:
    kappa = torch.tensor([0.3, 1.0, 4.0, 30.0], dtype=torch.float64)
    expected = kappa / torch.tanh(kappa) - 1 + torch.log(kappa / torch.sinh(kappa))
    torch.testing.assert_close(vmf_kl(kappa, 3), expected, rtol=2e-9, atol=1e-12)


@pytest.mark.parametrize("dim", DIMENSIONS)
def test_variance_is_accurate_for_large_kappa(dim: int) -> None:
    for value in (99.0 * dim, 101.0 * dim, 1e6, 1e8, 1e10):
        kappa = torch.tensor([value], dtype=torch.float64, requires_grad=True)
        mean, _ = bessel_ratio(kappa, dim)
        expected = float(exact_values(value, dim)[2] / value)
        assert vmf_variance(kappa.detach(), mean, dim).item() == pytest.approx(expected, rel=1e-6)
        if dim > 2:
            (slope,) = torch.autograd.grad(sample_cosine(kappa, dim, implicit=True).sum(), kappa)
            assert torch.isfinite(slope).all()


@pytest.mark.parametrize("dim", DIMENSIONS)
def test_kl_of_small_kappa_is_quadratic(dim: int) -> None:
    kappa = torch.tensor(1e-2, dtype=torch.float64)
    assert vmf_kl(kappa, dim).item() == pytest.approx(1e-4 / (2 * dim), rel=1e-4)


def test_kl_is_finite_where_scaled_bessel_function_underflows() -> None:
    assert special.ive(255, 5.0) == 0.0
    kappa = torch.tensor([1.0, 5.0], requires_grad=True)
    vmf_kl(kappa, 512).sum().backward()
    assert torch.isfinite(vmf_kl(kappa, 512)).all()
    assert (kappa.grad > 0).all()


def test_mean_lies_between_known_bounds() -> None:
    for dim in DIMENSIONS:
        order = dim / 2 - 1
        for kappa in CONCENTRATIONS:
            mean = bessel_ratio(torch.tensor(kappa, dtype=torch.float64), dim)[0].item()
            low = kappa / (order + 1 + math.hypot(kappa, order + 1))
            high = kappa / (order + math.hypot(kappa, order + 2))
            assert low * (1 - 1e-12) <= mean <= high * (1 + 1e-12)


def test_kl_gradient_agrees_with_finite_differences() -> None:
    kappa = torch.tensor([0.7, 12.0, 300.0], dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda k: vmf_kl(k, 64), kappa)


@pytest.mark.parametrize("dim", [2, 3, 16, 65, 512])
@pytest.mark.parametrize("kappa", [0.5, 20.0, 1000.0])
def test_samples_have_expected_mean_and_variance(dim: int, kappa: float) -> None:
    count = 20_000
    concentration = torch.full((count,), kappa, dtype=torch.float64)
    cosine = sample_cosine(concentration, dim)
    mean, _ = bessel_ratio(concentration[:1], dim)
    variance = vmf_variance(concentration[:1], mean, dim)
    assert (cosine.mean() - mean).abs() < 5 * (variance / count).sqrt()
    assert cosine.var().item() == pytest.approx(variance.item(), rel=0.08)


def test_samples_in_three_dimensions_follow_distribution() -> None:
    kappa = 4.0
    cosine = sample_cosine(torch.full((5000,), kappa, dtype=torch.float64), 3)
    below = torch.expm1(kappa * (cosine + 1)) / math.expm1(2 * kappa)  # the distribution function
    assert stats.kstest(below.numpy(), "uniform").pvalue > 1e-3


def test_samples_lie_on_sphere_around_direction() -> None:
    direction = unit(torch.randn(1, 16)).expand(20_000, 16)
    draws = sample_vmf(direction, torch.full((20_000,), 30.0))
    torch.testing.assert_close(draws.norm(dim=1), torch.ones(20_000), rtol=0, atol=1e-5)
    mean = draws.mean(dim=0)
    assert torch.dot(unit(mean), direction[0]) > 0.999
    length, _ = bessel_ratio(torch.tensor(30.0), 16)
    assert mean.norm().item() == pytest.approx(length.item(), abs=0.01)


def test_direction_along_first_axis_gives_finite_samples() -> None:
    direction = torch.zeros(4, 8)
    direction[:, 0] = torch.tensor([1.0, -1.0, 1.0, -1.0])
    direction.requires_grad_()
    draws = sample_vmf(direction, torch.tensor([1.0, 1.0, 1e6, 1e6]))
    draws.sum().backward()
    assert torch.isfinite(draws).all()
    assert torch.isfinite(direction.grad).all()


@pytest.mark.parametrize("dim", [3, 8, 64])
def test_implicit_gradient_is_exact_and_explicit_nearly(dim: int) -> None:
    """d E[w] / dκ is A′, for any implementation of the sampler."""
    kappa = torch.full((20_000,), 20.0, dtype=torch.float64, requires_grad=True)
    mean, _ = bessel_ratio(kappa[:1], dim)
    expected = vmf_variance(kappa[:1].detach(), mean, dim).item()
    (exact,) = torch.autograd.grad(sample_cosine(kappa, dim, implicit=True).sum(), kappa)
    assert exact.mean().item() == pytest.approx(expected, rel=0.02)
    (published,) = torch.autograd.grad(sample_cosine(kappa, dim).sum(), kappa)
    assert published.mean().item() == pytest.approx(expected, rel=0.08)


def test_implicit_slope_in_three_dimensions_equals_closed_form() -> None:
    """w(F, κ) = log(e^{−κ} + F·2 sinh κ) / κ at a fixed quantile F."""
    quantile = torch.tensor([0.01, 0.3, 0.6, 0.99], dtype=torch.float64)
    kappa = torch.full((4,), 3.0, dtype=torch.float64, requires_grad=True)
    cosine = torch.log(torch.exp(-kappa) + quantile * 2 * torch.sinh(kappa)) / kappa
    (expected,) = torch.autograd.grad(cosine.sum(), kappa)
    torch.testing.assert_close(implicit_slope(cosine.detach(), kappa.detach(), 3), expected, rtol=1e-8, atol=0)


@pytest.mark.parametrize(("dim", "kappa"), [(3, 50.0), (4, 60.0), (64, 20.0), (65, 1e6), (512, 40.0), (4096, 5.0)])
def test_implicit_slope_equals_adaptive_integration_in_tails(dim: int, kappa: float) -> None:
    concentration = torch.tensor([kappa], dtype=torch.float64)
    mean, _ = bessel_ratio(concentration, dim)
    deviation, centre = vmf_variance(concentration, mean, dim).sqrt().item(), mean.item()
    for away in (-4, -1, -0.01, 0.01, 1, 4):
        w, side = centre + away * deviation, math.copysign(1, away)
        if w >= 1:
            continue

        def tail(out: float, w: float = w, side: float = side) -> float:
            t = min(max(w + side * out, -1 + 1e-16), 1 - 1e-16)
            root = math.log((1 - t) * (1 + t)) - math.log((1 - w) * (1 + w))
            return abs(t - centre) * math.exp(kappa * (t - w) + (dim - 3) / 2 * root)

        expected, _ = integrate.quad(tail, 0, min(1 - side * w, 50 * deviation), epsabs=0, epsrel=1e-10, limit=500)
        slope = implicit_slope(torch.tensor([w], dtype=torch.float64), concentration, dim).item()
        assert slope == pytest.approx(expected, rel=1e-7), away


def test_too_few_dimensions_raise() -> None:
    kappa = torch.ones(3)
    with pytest.raises(ArcvqError, match="at least 2 dimensions, got 1"):
        vmf_kl(kappa, 1)
    with pytest.raises(ArcvqError, match="at least 3 dimensions"):
        sample_cosine(kappa, 2, implicit=True)
