"""Unit vectors (Eq. 8)."""

import math

import pytest
import torch

from arcvq.functional import unit


def test_unit_keeps_direction_and_sets_norm_to_one() -> None:
    rows = torch.randn(20, 5, dtype=torch.float64) * 10 ** torch.linspace(-6, 6, 20, dtype=torch.float64).unsqueeze(1)
    result = unit(rows)
    for before, after in zip(rows.tolist(), result.tolist()):
        length = math.sqrt(math.fsum(x * x for x in before))
        assert after == pytest.approx([x / length for x in before], abs=1e-14)


def test_unit_of_zero_row_is_zero_with_finite_gradient() -> None:
    rows = torch.zeros(2, 3, requires_grad=True)
    result = unit(rows)
    result.sum().backward()
    assert torch.equal(result, torch.zeros(2, 3))
    assert torch.isfinite(rows.grad).all()


def test_unit_gradient_agrees_with_finite_differences() -> None:
    assert torch.autograd.gradcheck(unit, (torch.randn(6, 4, dtype=torch.float64, requires_grad=True),))
