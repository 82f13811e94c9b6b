"""The straight-through gradient."""

import pytest
import torch

from arcvq.functional import straight_through


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_value_is_code_to_the_bit_in_latents_dtype(dtype: torch.dtype) -> None:
    codes = torch.randn(1000, 8) * 10 ** torch.linspace(-4, 3, 1000).unsqueeze(1)
    latents = (torch.randn(1000, 8) * 37).to(dtype)
    result = straight_through(codes, latents)
    assert result.dtype == dtype
    assert torch.equal(result, codes.to(dtype))


def test_usual_formula_does_not_keep_bits() -> None:
    codes, latents = torch.randn(1000, 8), torch.randn(1000, 8) * 37
    assert not torch.equal(latents + (codes - latents), codes)


def test_only_latents_get_gradient_and_unchanged() -> None:
    codes, latents = torch.randn(9, 4, requires_grad=True), torch.randn(9, 4, requires_grad=True)
    gradient = torch.randn(9, 4)
    straight_through(codes, latents).backward(gradient)
    assert torch.equal(latents.grad, gradient)
    assert codes.grad is None


def test_straight_through_works_in_torch_func() -> None:
    codes, latents = torch.randn(9, 4), torch.randn(9, 4)
    gradient = torch.func.grad(lambda z: (2 * straight_through(codes, z)).sum())(latents)
    assert torch.equal(gradient, torch.full_like(latents, 2.0))
