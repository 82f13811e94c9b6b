"""The rotation trick (Fifty et al., ICLR 2025): the gradient is rotated as the latent is rotated onto its code."""

from __future__ import annotations

import torch
from torch import Tensor

from arcvq.functional.precision import compute_dtype, without_autocast
from arcvq.functional.similarity import MIN_NORM, unit


def rotate(codes: Tensor, latents: Tensor) -> Tensor:
    """Forward: the codes, to the bit. Backward: the latents get the gradient through the rotation that maps them onto the codes.

    The map is λR, held constant: R = I − 2 r rᵀ + 2 q̂ ẑᵀ with r the unit vector of ẑ + q̂, which turns ẑ onto q̂, and
    λ = ‖q‖ / ‖z‖. The gradient keeps its angle to the code as its angle to the latent, where straight-through would keep its
    direction. A zero latent or code gets the straight-through gradient.
    """
    with without_autocast(latents):
        dtype = compute_dtype(latents)
        z, q = latents.to(dtype), codes.detach().to(dtype)
        fixed = z.detach()
        z_norm, q_norm = (torch.linalg.vector_norm(x, dim=-1, keepdim=True) for x in (fixed, q))
        z_unit, q_unit = unit(fixed), unit(q)
        between = unit(z_unit + q_unit)
        turned = z - 2 * _row_products(z, between) * between + 2 * _row_products(z, z_unit) * q_unit
        nonzero = (z_norm > MIN_NORM) & (q_norm > MIN_NORM)
        mapped = torch.where(nonzero, q_norm / torch.where(nonzero, z_norm, 1.0) * turned, z)
        # The bracket is exactly zero: only its gradient matters.
        return codes.detach().to(latents.dtype) + (mapped - mapped.detach()).to(latents.dtype)


def _row_products(a: Tensor, b: Tensor) -> Tensor:
    """The dot product of each pair of rows: (N, 1)."""
    return (a * b).sum(dim=-1, keepdim=True)
