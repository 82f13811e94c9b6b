"""The straight-through gradient."""

import pytest
import torch

from arcvq.functional import straight_through


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_forward_is_the_codes_to_the_bit_in_the_latents_dtype(dtype: torch.dtype) -> None:
    codes = torch.randn(1000, 8) * 10 ** torch.linspace(-4, 3, 1000).unsqueeze(1)
    latents = (torch.randn(1000, 8) * 37).to(dtype)
    result = straight_through(codes, latents)
    assert result.dtype == dtype
    assert torch.equal(result, codes.to(dtype))


def test_the_usual_form_would_not_keep_the_bits() -> None:
    codes, latents = torch.randn(1000, 8), torch.randn(1000, 8) * 37
    assert not torch.equal(latents + (codes - latents), codes)


def test_the_gradient_goes_to_the_latents_unchanged_and_to_nothing_else() -> None:
    codes, latents = torch.randn(9, 4, requires_grad=True), torch.randn(9, 4, requires_grad=True)
    gradient = torch.randn(9, 4)
    straight_through(codes, latents).backward(gradient)
    assert torch.equal(latents.grad, gradient)
    assert codes.grad is None


def test_it_works_inside_torch_func() -> None:
    codes, latents = torch.randn(9, 4), torch.randn(9, 4)
    gradient = torch.func.grad(lambda z: (2 * straight_through(codes, z)).sum())(latents)
    assert torch.equal(gradient, torch.full_like(latents, 2.0))
