"""Ball-bounded norm regularisation (Eqs. 5 to 7)."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def ball_bound_(codebook: Tensor, radius: Tensor | float, *companions: Tensor) -> Tensor:
    """Scale the codes (K, D) outside the ball onto its surface, in place; return which they were, (K,) bool.

    Codes inside keep every bit. `companions` (K, ...), such as running sums, are scaled by the same factors. No host read: the
    radius may be a tensor.
    """
    norms = torch.linalg.vector_norm(
        codebook, dim=-1, keepdim=True, dtype=torch.float64 if codebook.dtype == torch.float64 else torch.float32
    )
    outside = norms > radius
    factors = torch.where(outside, radius / norms, torch.ones_like(norms))  # (K, 1)
    for rows in (codebook, *companions):
        rows.mul_(factors.to(rows.dtype))
    return outside.squeeze(-1)
