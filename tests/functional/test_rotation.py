"""The rotation trick: codes forward, the gradient through a fixed rotation backward."""

import math

import pytest
import torch
from torch import Tensor

from arcvq.functional import rotate


def expected_gradient(latents: Tensor, codes: Tensor, upstream: Tensor) -> Tensor:
    """gᵀ·λR for each row, with R written out as a matrix."""
    rows = []
    for z, q, g in zip(latents, codes, upstream):
        z_unit, q_unit = z / z.norm(), q / q.norm()
        r = (z_unit + q_unit) / (z_unit + q_unit).norm()
        rotation = torch.eye(len(z), dtype=z.dtype) - 2 * torch.outer(r, r) + 2 * torch.outer(q_unit, z_unit)
        torch.testing.assert_close(rotation @ rotation.t(), torch.eye(len(z), dtype=z.dtype))
        torch.testing.assert_close(q.norm() / z.norm() * rotation @ z, q)
        rows.append(q.norm() / z.norm() * rotation.t() @ g)
    return torch.stack(rows)


def gradient(latents: Tensor, codes: Tensor, upstream: Tensor) -> Tensor:
    leaf = latents.clone().requires_grad_()
    rotate(codes, leaf).backward(upstream)
    assert leaf.grad is not None
    return leaf.grad


@pytest.mark.parametrize("dim", [2, 3, 16])
def test_gradient_equals_explicit_rotation_matrix(dim: int) -> None:
    latents, codes, upstream = (torch.randn(20, dim, dtype=torch.float64) for _ in range(3))
    torch.testing.assert_close(gradient(latents, codes, upstream), expected_gradient(latents, codes, upstream))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_value_is_code_to_the_bit(dtype: torch.dtype) -> None:
    latents, codes = 3 * torch.randn(500, 7), torch.randn(500, 7)
    moved = rotate(codes, latents.to(dtype))
    assert moved.dtype == dtype
    assert torch.equal(moved, codes.to(dtype))


def test_gradient_keeps_angle_and_scales_with_norms() -> None:
    latents, codes, upstream = (torch.randn(50, 5, dtype=torch.float64) for _ in range(3))
    received = gradient(latents, codes, upstream)
    cosine = torch.nn.functional.cosine_similarity
    torch.testing.assert_close(cosine(received, latents), cosine(upstream, codes))
    ratio = codes.norm(dim=1) / latents.norm(dim=1)
    torch.testing.assert_close(received.norm(dim=1), ratio * upstream.norm(dim=1))


def test_latent_equal_to_code_gets_straight_through_gradient() -> None:
    codes, upstream = torch.randn(9, 4, dtype=torch.float64), torch.randn(9, 4, dtype=torch.float64)
    torch.testing.assert_close(gradient(codes, codes, upstream), upstream)


def test_codes_get_no_gradient() -> None:
    codes = torch.randn(4, 3, requires_grad=True)
    rotate(codes, torch.randn(4, 3, requires_grad=True)).sum().backward()
    assert codes.grad is None


def test_opposite_and_zero_vectors_have_finite_gradient() -> None:
    latents = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 2.0], [0.0, 0.0]])
    codes = torch.tensor([[-2.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    upstream = torch.tensor([[1.0, 1.0], [3.0, 4.0], [3.0, 4.0], [3.0, 4.0]])
    received = gradient(latents, codes, upstream)
    # Opposite vectors: a reflection that maps ẑ to q̂, scaled by 2. Zero vectors: straight-through.
    assert torch.equal(received[0], torch.tensor([-2.0, 2.0]))
    assert torch.equal(received[1:], upstream[1:])
    assert math.isclose(float(received[0].norm()), 2 * math.sqrt(2), rel_tol=1e-6)
