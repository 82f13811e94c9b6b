"""The straight-through gradient and the VQ loss."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from arcvq.functional.precision import compute_dtype, without_autocast


def straight_through(codes: Tensor, latents: Tensor) -> Tensor:
    """Forward: the codes, to the bit. Backward: the latents get the gradient unchanged, the codes none.

    The value of the usual z + sg(q − z) is rounded, and so not a code.
    """
    return _StraightThrough.apply(codes.detach(), latents)


class _StraightThrough(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(codes: Tensor, latents: Tensor) -> Tensor:
        """A copy of the codes in the latents' dtype."""
        return codes.to(latents.dtype, copy=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The gradient unchanged for the latents, none for the codes."""
        return None, *grads


def vq_loss(
    latents: Tensor,
    codes: Tensor,
    codebook_weight: float = 1.0,
    commitment_weight: float = 0.25,
    legacy: bool = False,
    valid: Tensor | None = None,
) -> dict[str, Tensor]:
    """VQ-VAE's two weighted terms, by name, for latents (N, D) and their codes (N, D); each a mean over elements (Eq. 3).

    codebook:   codebook_weight   · mean (e − sg z)²     moves the codes to the latents
    commitment: commitment_weight · mean (sg e − z)²     keeps the latents near their codes

    `legacy=True` swaps the two weights: checkpoints trained with taming-transformers' default (and all that copied it) put
    β on the codebook term and 1 on the commitment. Use it to continue such a checkpoint, not for a new one.
    `valid` (N,) leaves padded rows out of the mean.
    """
    if legacy:
        codebook_weight, commitment_weight = commitment_weight, codebook_weight
    with without_autocast(latents):
        dtype = compute_dtype(latents)
        latents, codes = latents.to(dtype), codes.to(dtype)
        return {
            "codebook": codebook_weight * _mean_square(codes, latents.detach(), valid),
            "commitment": commitment_weight * _mean_square(codes.detach(), latents, valid),
        }


def _mean_square(a: Tensor, b: Tensor, valid: Tensor | None) -> Tensor:
    """mean (a − b)² over the valid rows; 0 without any."""
    if valid is None and a.shape[0]:
        return F.mse_loss(a, b)
    rows = (a - b).square().mean(dim=-1)  # (N,)
    return rows.sum() if valid is None else torch.where(valid, rows, 0.0).sum() / valid.sum().clamp(min=1)
