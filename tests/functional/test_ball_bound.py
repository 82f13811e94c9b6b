"""The ball bound (Eqs. 5 to 7)."""

import pytest
import torch

from arcvq.functional import ball_bound_


def codes_around(radius: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    directions = torch.nn.functional.normalize(torch.randn(60, 8, dtype=torch.float64), dim=1)
    return (directions * torch.linspace(0.2, 3.0, 60).unsqueeze(1) * radius).to(dtype)


@pytest.mark.parametrize("radius", [1.0, 0.01, 6974.0])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_codes_are_bounded_and_inner_ones_keep_every_bit(radius: float, as_tensor: bool) -> None:
    codebook = codes_around(radius)
    before = codebook.clone()
    outside = ball_bound_(codebook, torch.tensor(radius) if as_tensor else radius)
    were_outside = before.double().norm(dim=1) > radius
    assert torch.equal(outside, were_outside)
    assert were_outside.any()
    assert not were_outside.all()
    assert codebook.double().norm(dim=1).max() <= radius * (1 + 1e-6)
    assert torch.equal(codebook[~outside].view(torch.int32), before[~outside].view(torch.int32))


def test_outer_codes_move_to_surface_in_same_direction() -> None:
    codebook = codes_around(1.0, torch.float64)
    before = codebook.clone()
    outside = ball_bound_(codebook, 1.0)
    expected = before[outside] / before[outside].norm(dim=1, keepdim=True)
    torch.testing.assert_close(codebook[outside], expected, rtol=1e-14, atol=0)


def test_bounding_twice_changes_nothing() -> None:
    codebook = codes_around(1.0)
    ball_bound_(codebook, 1.0)
    once = codebook.clone()
    ball_bound_(codebook, 1.0)
    torch.testing.assert_close(codebook, once, rtol=2e-7, atol=0)


def test_zero_code_stays_zero() -> None:
    codebook = torch.zeros(3, 4)
    codebook[1] = 5.0
    outside = ball_bound_(codebook, 1.0)
    assert outside.tolist() == [False, True, False]
    assert torch.equal(codebook[0], torch.zeros(4))
    assert torch.isfinite(codebook).all()


def test_infinite_ball_changes_nothing() -> None:
    codebook = codes_around(1.0)
    before = codebook.clone()
    assert not ball_bound_(codebook, torch.tensor(float("inf"))).any()
    assert torch.equal(codebook, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_codes_are_bounded_up_to_rounding(dtype: torch.dtype) -> None:
    codebook = codes_around(1.0, dtype)
    ball_bound_(codebook, 1.0)
    assert codebook.dtype == dtype
    assert codebook.double().norm(dim=1).max() <= 1 + 2 * torch.finfo(dtype).eps


def test_parameter_is_bounded_in_place_and_still_trainable() -> None:
    codebook = torch.nn.Parameter(codes_around(1.0))
    address = codebook.data_ptr()
    ball_bound_(codebook, 1.0)
    assert codebook.data_ptr() == address
    codebook.sum().backward()
    assert torch.equal(codebook.grad, torch.ones_like(codebook))
