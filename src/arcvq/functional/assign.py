"""The nearest code of each latent (Eqs. 1 and 9), and counts, sums and perplexity of tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from arcvq.errors import ArcvqError
from arcvq.functional import fused
from arcvq.functional.chunks import Backend, check_search_shapes, choose_backend, code_blocks, token_blocks
from arcvq.functional.kernels.tilings import MAX_HISTOGRAM_CODES
from arcvq.functional.precision import compute_dtype, ieee_matmul, matmul, without_autocast
from arcvq.functional.similarity import Metric, check_metric, half_square, search_operands

# Scores in a group of `_row_maximum`.
GROUP = 128


@torch.no_grad()
def assign(latents: Tensor, codebook: Tensor, metric: Metric = "cosine", backend: Backend = "auto") -> Tensor:
    """The token (the nearest code's index, int64) of each latent: (N, D), codebook (K, D) → (N,). Ties go to the lowest index.

    `cosine` is argmax_j ẑ·ê_j (Eq. 9); `euclidean` is argmin_j ‖z − e_j‖ (Eq. 1). The search runs in float32 whatever the
    inputs' dtype, autocast or the matmul precision. `reference` holds all N × K scores,
    `chunked` a bounded block of them, `triton` (CUDA) none outside the processor's registers.
    """
    check_search_shapes(latents, codebook)
    check_metric(metric)
    dtype = compute_dtype(latents)
    with without_autocast(latents):
        latents, codebook = latents.detach(), codebook.detach().to(dtype)
        impl = choose_backend(backend, latents)
        if impl == "triton":
            return fused.assign(latents, codebook, None if metric == "cosine" else half_square(codebook))
        queries, keys, bias = search_operands(latents.to(dtype), codebook, metric)
        if impl == "reference":
            scores = matmul(queries, keys.t())  # (N, K)
            return (scores if bias is None else scores - bias).argmax(dim=1)
        return _chunked_assign(queries, keys, bias)


@torch.library.custom_op("arcvq::assign", mutates_args=())
def _chunked_assign(queries: Tensor, keys: Tensor, bias: Tensor | None) -> Tensor:
    """argmax_j (q·k_j − bias_j) of each query, block by block."""
    tokens = torch.zeros(queries.shape[0], dtype=torch.int64, device=queries.device)
    best = queries.new_full((queries.shape[0],), float("-inf"))
    with ieee_matmul(queries):
        for codes in code_blocks(keys):
            for block in token_blocks(queries, keys[codes]):
                scores = queries[block] @ keys[codes].t()  # (block, codes)
                if bias is not None:
                    scores -= bias[codes]
                score, code = _row_maximum(scores)
                better = score > best[block]  # strictly: ties go to the lowest index
                best[block] = torch.where(better, score, best[block])
                tokens[block] = torch.where(better, code + codes.start, tokens[block])
    return tokens


def _row_maximum(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's highest score and the first index that has it.

    On a CPU amax is many times faster than argmax, so the index is searched in the best group only.
    """
    rows, codes = scores.shape
    if scores.is_cuda or codes % GROUP:
        return scores.max(dim=1)
    groups = scores.view(rows, codes // GROUP, GROUP)
    group = groups.amax(dim=2).argmax(dim=1)
    score, index = groups[torch.arange(rows), group].max(dim=1)
    return score, group * GROUP + index


_chunked_assign.register_fake(lambda queries, *_: queries.new_empty(queries.shape[0], dtype=torch.int64))


def token_counts(tokens: Tensor, codebook_size: int, backend: Backend = "auto") -> Tensor:
    """How many tokens each code has: (K,) int64. Negative tokens are padding and are not counted."""
    flat = tokens.reshape(-1)
    if choose_backend(backend, tokens) == "triton" and codebook_size <= MAX_HISTOGRAM_CODES:
        return fused.token_counts(flat, codebook_size)
    real = flat >= 0
    counts = torch.zeros(codebook_size, dtype=torch.int64, device=tokens.device)
    return counts.scatter_add(0, flat.clamp(min=0), real.to(torch.int64))


def token_sums(latents: Tensor, tokens: Tensor, codebook_size: int, backend: Backend = "auto") -> Tensor:
    """The sum of each code's latents: (N, D), tokens (N,) → (K, D) float32. Negative tokens are padding and are left out.

    `triton` (CUDA) is deterministic, and its time does not depend on the tokens; it has no gradient, so latents that need one
    are summed by index_add.
    """
    if latents.dim() != 2 or tokens.shape != latents.shape[:1]:
        raise ArcvqError(
            f"expected latents (N, D) and tokens (N,), got shapes {tuple(latents.shape)} and {tuple(tokens.shape)}"
        )
    needs_gradient = torch.is_grad_enabled() and latents.requires_grad
    if choose_backend(backend, latents) == "triton" and not needs_gradient:
        return fused.token_sums(latents, tokens, codebook_size)
    real = (tokens >= 0).unsqueeze(1)
    rows = torch.where(real, latents.to(compute_dtype(latents)), 0.0)
    return rows.new_zeros(codebook_size, latents.shape[1]).index_add(0, tokens.clamp(min=0), rows)


def perplexity(counts: Tensor) -> Tensor:
    """exp(−Σ p log p) of the codes' frequencies p: K when all are used equally, 1 when only one is used, 0 without tokens."""
    total = counts.sum()
    return torch.exp(torch.special.entr(counts / total.clamp(min=1)).sum()) * (total > 0)
