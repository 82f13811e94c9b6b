"""The lookup of tokens in the codebook, with a deterministic gradient: each code's is the sum over its tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from arcvq.functional.assign import token_sums
from arcvq.functional.chunks import Backend, choose_backend


def lookup(codebook: Tensor, tokens: Tensor, backend: Backend = "auto") -> Tensor:
    """The code of each token: codebook (K, D), tokens (...) in 0 … K−1 → codes (..., D).

    With `triton` (CUDA) the gradient comes from `token_sums`: torch's own adds atomically, which is slow when few codes have most
    tokens, and not deterministic.
    """
    if choose_backend(backend, codebook) == "triton":
        codes: Tensor = _Lookup.apply(codebook, tokens)
        return codes
    return nn.functional.embedding(tokens, codebook)


class _Lookup(torch.autograd.Function):
    """A plain lookup, whose backward calls `token_sums`. No custom operator, so that a compiler can fuse the lookup."""

    @staticmethod
    def forward(codebook: Tensor, tokens: Tensor) -> Tensor:
        return nn.functional.embedding(tokens, codebook)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        codebook, tokens = inputs
        ctx.save_for_backward(tokens)
        ctx.codebook_size, ctx.dtype = codebook.shape[0], codebook.dtype

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The sum of each code's gradients over its tokens."""
        (grad,) = grads
        (tokens,) = ctx.saved_tensors
        sums = token_sums(grad.reshape(-1, grad.shape[-1]), tokens.reshape(-1), ctx.codebook_size, "triton")
        return sums.to(ctx.dtype), None
