"""The reconstruction term, by hand."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from arcvq import ArcvqError
from arcvq.objectives import OBJECTIVES, Reconstruction, ReconstructionConfig

IMAGES = torch.tensor([[0.0, 1.0], [-1.0, 0.5]]).view(2, 1, 1, 2)
COPIES = torch.tensor([[0.5, 1.0], [-1.0, -0.5]]).view(2, 1, 1, 2)  # off by 0.5, 0, 0 and 1
VARIANCE = 0.3125


def make(variance: float = VARIANCE, **options: Any) -> Reconstruction:
    objective = OBJECTIVES.build(ReconstructionConfig(**options), lambda: variance)
    assert isinstance(objective, Reconstruction)
    return objective


def value_of(objective: Reconstruction, copies: Tensor, images: Tensor) -> Tensor:
    (name, value), *others = objective(copies, images).items()
    assert (name, others) == ("reconstruction", [])
    return value


@pytest.mark.parametrize(
    ("kind", "normalise", "value"),
    [
        ("mse", "none", 0.3125),
        ("mse", "variance", 1.0),
        ("mse", "variance01", 4.0),
        ("l1", "none", 0.375),
        ("l1", "variance", 1.2),
        ("l1", "variance01", 4.8),
        ("likelihood", "none", 0.5 * math.log(0.3125)),
        ("likelihood", "variance", 0.0),
    ],
)
def test_the_value_is_the_mean_error_over_the_divisor(kind: str, normalise: str, value: float) -> None:
    objective = make(reconstruction=kind, normalise=normalise)
    assert value_of(objective, COPIES, IMAGES).item() == pytest.approx(value, rel=1e-6)


def test_the_gradient_is_that_of_the_mean() -> None:
    copies = COPIES.clone().requires_grad_()
    value_of(make(), copies, IMAGES).backward()
    torch.testing.assert_close(copies.grad, 2 * (COPIES - IMAGES) / 4 / VARIANCE)


def test_half_precision_is_compared_in_float32() -> None:
    objective = make(normalise="none")
    value = value_of(objective, COPIES.bfloat16(), IMAGES)
    assert value.dtype == torch.float32
    assert value.item() == 0.3125


def test_a_process_without_images_adds_nothing() -> None:
    empty = torch.zeros(0, 1, 1, 2)
    assert value_of(make(), empty, empty).item() == 0.0


@pytest.mark.parametrize("normalise", ["variance", "variance01"])
@pytest.mark.parametrize("variance", [0.0, float("nan")])
def test_images_of_one_colour_cannot_be_normalised(normalise: str, variance: float) -> None:
    with pytest.raises(ArcvqError, match=r"variance is 0; set objective\.normalise to none"):
        make(variance, normalise=normalise)


def test_images_of_one_colour_need_no_normalisation() -> None:
    assert value_of(make(0.0, normalise="none"), COPIES, IMAGES).item() == 0.3125


def test_the_likelihood_is_a_gaussians_with_the_variance_that_suits_it_best() -> None:
    """SSE/(2v) + (D/2)·log v is lowest at v = SSE/D, where it is the profiled form plus D/2."""
    copies = COPIES.double().requires_grad_()
    v = torch.tensor(0.3125, dtype=torch.float64, requires_grad=True)  # SSE/D here
    sum_of_squares, count = (copies - IMAGES).square().sum(), IMAGES.numel()
    full = sum_of_squares / (2 * v) + count / 2 * torch.log(v)
    slope, expected = torch.autograd.grad(full, (v, copies))
    assert abs(slope.item()) < 1e-12
    profiled = count * value_of(make(reconstruction="likelihood", normalise="none"), copies, IMAGES)
    assert profiled.item() == pytest.approx(full.item() - count / 2, abs=1e-6)
    (gradient,) = torch.autograd.grad(profiled, copies)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6)


def test_a_perfect_copy_has_a_finite_likelihood_and_no_gradient() -> None:
    copies = IMAGES.clone().requires_grad_()
    value = value_of(make(reconstruction="likelihood"), copies, IMAGES)
    value.backward()
    assert torch.isfinite(value)
    assert torch.equal(copies.grad, torch.zeros_like(copies))
