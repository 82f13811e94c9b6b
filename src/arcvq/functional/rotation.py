"""The rotation trick (Fifty et al., ICLR 2025): a gradient that turns with the latent on its way to the code."""

from __future__ import annotations

import torch
from torch import Tensor

from arcvq.functional.precision import compute_dtype, without_autocast
from arcvq.functional.similarity import NO_DIRECTION, unit


def rotate(codes: Tensor, latents: Tensor) -> Tensor:
    """Forward: the codes, to the bit. Backward: the gradient goes to the latents through the map that took them there.

    That map is λR, held constant: R = I − 2 r rᵀ + 2 q̂ ẑᵀ with r the unit vector of ẑ + q̂, which turns ẑ onto q̂, and
    λ = ‖q‖ / ‖z‖. Angles between the gradient and the code become angles between the gradient and the latent, where
    straight-through would keep the gradient's own direction. A latent or a code without a direction is passed straight through.
    """
    with without_autocast(latents):
        dtype = compute_dtype(latents)
        z, q = latents.to(dtype), codes.detach().to(dtype)
        fixed = z.detach()
        z_norm, q_norm = (torch.linalg.vector_norm(x, dim=-1, keepdim=True) for x in (fixed, q))
        z_unit, q_unit = unit(fixed), unit(q)
        between = unit(z_unit + q_unit)
        turned = z - 2 * _along(z, between) * between + 2 * _along(z, z_unit) * q_unit
        turnable = (z_norm > NO_DIRECTION) & (q_norm > NO_DIRECTION)
        moved = torch.where(turnable, q_norm / torch.where(turnable, z_norm, 1.0) * turned, z)
        # The bracket is exactly zero: only its gradient matters.
        return codes.detach().to(latents.dtype) + (moved - moved.detach()).to(latents.dtype)


def _along(x: Tensor, direction: Tensor) -> Tensor:
    return (x * direction).sum(dim=-1, keepdim=True)
