"""The logit-Laplace density: it integrates to 1, its derivative is right, and the logit is a Laplace variable."""

import math

import pytest
import torch
from torch import Tensor

from arcvq.functional import logit_laplace_nll


def image_of(y: Tensor, margin: float) -> Tensor:
    """The pixel in [-1, 1], extended beyond where y leaves the margins, that is mapped to y."""
    return 2 * (y - margin) / (1 - 2 * margin) - 1


@pytest.mark.parametrize("margin", [0.0, 0.1])
@pytest.mark.parametrize(("location", "log_scale"), [(0.0, 0.0), (1.5, -1.0), (-2.0, 0.4)])
def test_density_integrates_to_one(margin: float, location: float, log_scale: float) -> None:
    edges = torch.sigmoid(torch.linspace(-45, 45, 200_001, dtype=torch.float64))
    y, widths = (edges[1:] + edges[:-1]) / 2, edges.diff()
    mu, log_b = torch.full_like(y, location), torch.full_like(y, log_scale)
    inside = (y > 1e-12) & (y < 1 - 1e-12)
    density = (-logit_laplace_nll(image_of(y, margin), mu, log_b, margin)).exp()[inside]
    assert (density * widths[inside]).sum().item() == pytest.approx(1.0, abs=1e-5)


def test_value_equals_the_formula() -> None:
    x, mu, log_b = 0.3, -0.4, -0.7
    y, b = 0.8 * (x + 1) / 2 + 0.1, math.exp(log_b)
    density = math.exp(-abs(math.log(y / (1 - y)) - mu) / b) / (2 * b * y * (1 - y))
    arguments = (torch.tensor(each, dtype=torch.float64) for each in (x, mu, log_b))
    assert logit_laplace_nll(*arguments).item() == pytest.approx(-math.log(density), rel=1e-12)


def test_gradient_agrees_with_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(2, 3, 2, 2, generator=generator, dtype=torch.float64) * 2 - 1
    location, log_scale = torch.randn(2, *images.shape, generator=generator, dtype=torch.float64)
    inputs = tuple(each.clone().requires_grad_() for each in (images, location, log_scale))
    assert torch.autograd.gradcheck(logit_laplace_nll, inputs)


def test_black_and_white_are_finite_in_half_precision() -> None:
    images = torch.tensor([-1.0, 1.0], dtype=torch.bfloat16)
    nll = logit_laplace_nll(images, torch.zeros(2).bfloat16(), torch.zeros(2).bfloat16())
    assert nll.dtype == torch.float32
    expected = math.log(2 * 0.1 * 0.9) + math.log(9)
    assert nll.tolist() == pytest.approx([expected, expected], rel=1e-6)
