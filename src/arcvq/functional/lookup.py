"""The codes of tokens, and their gradient: of each code the sum over its tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from arcvq.functional.assign import token_sums
from arcvq.functional.chunks import Backend, choose_backend


def lookup(codebook: Tensor, tokens: Tensor, backend: Backend = "auto") -> Tensor:
    """codebook (K, D), tokens (...) in 0 … K−1 → codes (..., D).

    The gradient is torch's, or with `triton` (CUDA) that of `token_sums`: torch adds it up atomically, which takes long when
    few codes have most tokens, and gives other last bits each time.
    """
    if choose_backend(backend, codebook) == "triton":
        codes: Tensor = _Lookup.apply(codebook, tokens)
        return codes
    return nn.functional.embedding(tokens, codebook)


class _Lookup(torch.autograd.Function):
    """Not an operator: a compiler sees a plain lookup, which it fuses with what follows, and the sums are an operator of their own."""

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
        (grad,) = grads
        (tokens,) = ctx.saved_tensors
        sums = token_sums(grad.reshape(-1, grad.shape[-1]), tokens.reshape(-1), ctx.codebook_size, "triton")
        return sums.to(ctx.dtype), None
