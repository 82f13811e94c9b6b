"""Which code each token takes (Eqs. 1 and 9), and how often each code is taken."""

from __future__ import annotations

import torch
from torch import Tensor

from arcvq.functional.chunks import Backend, check_pair, choose_backend, token_blocks
from arcvq.functional.precision import compute_dtype, ieee_matmul, matmul, without_autocast
from arcvq.functional.similarity import Metric, check_metric, search_operands


@torch.no_grad()
def assign(latents: Tensor, codebook: Tensor, metric: Metric = "cosine", backend: Backend = "auto") -> Tensor:
    """latents (N, D), codebook (K, D) → tokens (N,), int64. Ties go to the lowest index.

    `cosine` is argmax_j ẑ·ê_j (Eq. 9); `euclidean` is argmin_j ‖z − e_j‖ (Eq. 1). The search runs in float32 whatever the
    inputs' dtype, autocast or the matmul precision. `reference` holds all N × K scores,
    `chunked` a bounded block of them, `triton` (CUDA) none outside the processor's registers.
    """
    check_pair(latents, codebook)
    check_metric(metric)
    dtype = compute_dtype(latents)
    with without_autocast(latents):
        queries, keys, bias = search_operands(latents.detach().to(dtype), codebook.detach().to(dtype), metric)
        body = choose_backend(backend, latents)
        if body == "reference":
            scores = matmul(queries, keys.t())  # (N, K)
            return (scores if bias is None else scores - bias).argmax(dim=1)
        return _assign(queries, keys, bias, body == "triton")


@torch.library.custom_op("arcvq::assign", mutates_args=())
def _assign(queries: Tensor, keys: Tensor, bias: Tensor | None, fused: bool) -> Tensor:
    if fused:
        from arcvq.functional import kernels

        return kernels.assign(queries, keys, bias)
    tokens = torch.empty(queries.shape[0], dtype=torch.int64, device=queries.device)
    with ieee_matmul(queries):
        for block in token_blocks(queries, keys):
            scores = queries[block] @ keys.t()  # (block, K)
            if bias is not None:
                scores -= bias
            torch.argmax(scores, dim=1, out=tokens[block])
    return tokens


@_assign.register_fake
def _(queries: Tensor, keys: Tensor, bias: Tensor | None, fused: bool) -> Tensor:
    return torch.empty(queries.shape[0], dtype=torch.int64, device=queries.device)


def token_counts(tokens: Tensor, codebook_size: int) -> Tensor:
    """How many tokens fell on each code: (K,) int64. Tokens below zero are padding and fall on none."""
    flat = tokens.reshape(-1)
    real = flat >= 0
    counts = torch.zeros(codebook_size, dtype=torch.int64, device=tokens.device)
    return counts.scatter_add(0, flat.clamp(min=0), real.to(torch.int64))


def token_sums(latents: Tensor, tokens: Tensor, codebook_size: int) -> Tensor:
    """The sum of the latents (N, D) that fell on each code: (K, D), in float32. Tokens below zero fall on none."""
    real = (tokens >= 0).unsqueeze(1)
    rows = torch.where(real, latents.to(compute_dtype(latents)), 0.0)
    return rows.new_zeros(codebook_size, latents.shape[1]).index_add(0, tokens.clamp(min=0), rows)


def perplexity(counts: Tensor) -> Tensor:
    """exp(−Σ p log p) of the codes' frequencies: K when all are used alike, 1 when one takes everything, 0 when no token came."""
    total = counts.sum()
    share = counts.to(torch.float32) / total.clamp(min=1)
    return torch.where(total > 0, torch.exp(-torch.special.xlogy(share, share).sum()), torch.zeros_like(share[0]))
