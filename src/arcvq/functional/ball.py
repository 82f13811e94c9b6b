"""Ball-bounded norm regularisation (Eqs. 5 to 7)."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def ball_bound_(codebook: Tensor, radius: Tensor | float, *companions: Tensor) -> Tensor:
    """Scale codes (K, D) that lie outside the ball back onto its surface, in place; the others keep every bit.

    `companions` (K, ...) are scaled by the same factors: running sums, whose means the codes are.
    Returns which codes were outside, (K,) bool. No host read: the radius may be a tensor that a schedule computed.
    """
    norms = torch.linalg.vector_norm(
        codebook, dim=-1, keepdim=True, dtype=torch.float64 if codebook.dtype == torch.float64 else torch.float32
    )
    outside = norms > radius
    factors = torch.where(outside, radius / norms, torch.ones_like(norms))  # (K, 1)
    for rows in (codebook, *companions):
        rows.mul_(factors.to(rows.dtype))
    return outside.squeeze(-1)
