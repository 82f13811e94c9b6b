"""cos(θ + m) as a function of cos θ: its value is exact, its slope is bounded at the ends."""

import math

import pytest
import torch

from arcvq.functional import margin_cosine


@pytest.mark.parametrize("margin", [0.0, 0.1, 0.5, 1.0])
def test_value_is_cosine_of_widened_angle_beyond_pi_too(margin: float) -> None:
    angles = torch.linspace(0, math.pi, 101, dtype=torch.float64)
    torch.testing.assert_close(margin_cosine(torch.cos(angles), margin), torch.cos(angles + margin), rtol=0, atol=2e-8)


@pytest.mark.parametrize("margin", [0.0, 0.1, 1.0])
def test_value_is_exact_at_poles(margin: float) -> None:
    values = margin_cosine(torch.tensor([1.0, -1.0]), margin)
    torch.testing.assert_close(values, torch.tensor([math.cos(margin), -math.cos(margin)]), rtol=0, atol=1e-7)


@pytest.mark.parametrize("margin", [0.1, 1.0])
@pytest.mark.parametrize("pole", [1.0, -1.0])
def test_gradient_is_bounded_at_poles(pole: float, margin: float) -> None:
    near = pole * (1 - torch.tensor([0.0, 1e-16, 1e-12, 1e-9, 1e-7], dtype=torch.float64))
    near.requires_grad_()
    margin_cosine(near, margin).sum().backward()
    # sin(θ + m)/sin θ at sin θ = 1/1000
    bound = math.cos(margin) + 1000 * math.sin(margin)
    assert torch.isfinite(near.grad).all()
    assert near.grad.abs().max() <= bound * (1 + 1e-12)
    assert near.grad[0].item() == pytest.approx(math.cos(margin) + pole * 1000 * math.sin(margin))


def test_cosines_rounded_beyond_one_give_finite_gradient() -> None:
    cosines = torch.tensor([1.0 + 1e-6, -1.0 - 1e-6], requires_grad=True)
    values = margin_cosine(cosines, 0.1)
    values.sum().backward()
    torch.testing.assert_close(values, torch.tensor([math.cos(0.1), -math.cos(0.1)]), rtol=0, atol=1e-6)
    assert torch.isfinite(cosines.grad).all()


@pytest.mark.parametrize("margin", [0.1, 0.7])
@pytest.mark.parametrize("monotone", [False, True])
def test_gradient_agrees_with_finite_differences_near_poles(margin: float, monotone: bool) -> None:
    angles = torch.tensor([0.01, 0.1, 1.0, 2.0, 3.0, math.pi - 0.01], dtype=torch.float64)
    cosines = torch.cos(angles).requires_grad_()
    assert torch.autograd.gradcheck(lambda c: margin_cosine(c, margin, monotone), (cosines,), atol=1e-4, rtol=1e-4)


def test_default_value_rises_beyond_pi_minus_margin() -> None:
    angles = torch.linspace(math.pi - 0.5, math.pi, 50, dtype=torch.float64)
    values = margin_cosine(torch.cos(angles), 0.5)
    assert (values.diff()[1:] > 0).all()


@pytest.mark.parametrize("margin", [0.1, 0.5, 1.0])
def test_monotone_value_falls_everywhere_and_is_continuous(margin: float) -> None:
    angles = torch.linspace(0, math.pi, 2001, dtype=torch.float64)
    values = margin_cosine(torch.cos(angles), margin, monotone=True)
    assert (values.diff() < 0).all()
    assert values.diff().abs().max() < 2e-3
    assert values[-1].item() == pytest.approx(math.cos(margin) - 2)


def test_monotone_equals_default_below_pi_minus_margin() -> None:
    cosines = torch.cos(torch.linspace(0, math.pi - 0.51, 50, dtype=torch.float64))
    assert torch.equal(margin_cosine(cosines, 0.5), margin_cosine(cosines, 0.5, monotone=True))


def test_monotone_slope_is_one_beyond_pi_minus_margin() -> None:
    cosines = torch.tensor([-0.95, -0.99, -1.0], dtype=torch.float64, requires_grad=True)
    margin_cosine(cosines, 0.5, monotone=True).sum().backward()
    assert torch.equal(cosines.grad, torch.ones_like(cosines))


@pytest.mark.parametrize("monotone", [False, True])
def test_second_gradient_agrees_with_finite_differences(monotone: bool) -> None:
    angles = torch.tensor([0.1, 1.0, 2.0, 3.0], dtype=torch.float64)
    cosines = torch.cos(angles).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda c: margin_cosine(c, 0.5, monotone), (cosines,))
