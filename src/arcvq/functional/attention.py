"""Attention with one head, as plain matrix products: wide heads fall to slow kernels elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor

from arcvq.errors import ArcvqError
from arcvq.functional.precision import compute_dtype


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax(q·kᵀ/√C)·v: q (B, N, C), k (B, M, C), v (B, M, D) → (B, N, D). False in mask (B, N, M) means: may not attend.

    The products run in the inputs' dtype or autocast's, the softmax in float32 (float64 stays float64). A query that may attend to
    nothing gets zeros.
    """
    _check_shapes(q, k, v, mask)
    # The product scales by 1/√C before it rounds, so that float16 does not overflow.
    scores = torch.baddbmm(q.new_zeros(1, 1, 1), q, k.transpose(1, 2), beta=0, alpha=q.shape[-1] ** -0.5)
    dtype = compute_dtype(scores)
    if mask is None:
        probabilities = torch.softmax(scores, dim=-1, dtype=dtype)
    else:
        # Not −inf: a row of that alone would have a softmax and a gradient of NaN.
        lowest = scores.to(dtype).masked_fill(~mask, torch.finfo(dtype).min)
        probabilities = torch.softmax(lowest, dim=-1).masked_fill(~mask, 0.0)
    return torch.bmm(probabilities.to(scores.dtype), v)


def _check_shapes(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> None:
    """Raise unless queries, keys, values and mask fit together."""
    if not (q.dim() == k.dim() == v.dim() == 3 and q.shape[::2] == k.shape[::2] and k.shape[:2] == v.shape[:2]):
        shapes = ", ".join(str(tuple(each.shape)) for each in (q, k, v))
        raise ArcvqError(f"attention takes queries (B, N, C), keys (B, M, C) and values (B, M, D), got {shapes}")
    if mask is not None and (mask.dtype != torch.bool or mask.shape != (*q.shape[:2], k.shape[1])):
        expected = (*q.shape[:2], k.shape[1])
        raise ArcvqError(f"the mask must be bool of shape {expected}, got {mask.dtype} of shape {tuple(mask.shape)}")
