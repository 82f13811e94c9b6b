"""Which code each token takes (Eqs. 1 and 9), and how often each code is taken."""

from __future__ import annotations

import torch
from torch import Tensor

from arcvq.errors import ArcvqError
from arcvq.functional import fused
from arcvq.functional.chunks import Backend, check_pair, choose_backend, code_blocks, token_blocks
from arcvq.functional.precision import compute_dtype, ieee_matmul, matmul, without_autocast
from arcvq.functional.similarity import Metric, check_metric, half_square, search_operands
from arcvq.functional.tilings import FEW_CODES

# Scores per group of `_best`.
GROUP = 128


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
        latents, codebook = latents.detach(), codebook.detach().to(dtype)
        impl = choose_backend(backend, latents)
        if impl == "triton":
            return fused.assign(latents, codebook, None if metric == "cosine" else half_square(codebook))
        queries, keys, bias = search_operands(latents.to(dtype), codebook, metric)
        if impl == "reference":
            scores = matmul(queries, keys.t())  # (N, K)
            return (scores if bias is None else scores - bias).argmax(dim=1)
        return _assign(queries, keys, bias)


@torch.library.custom_op("arcvq::assign", mutates_args=())
def _assign(queries: Tensor, keys: Tensor, bias: Tensor | None) -> Tensor:
    tokens = torch.zeros(queries.shape[0], dtype=torch.int64, device=queries.device)
    best = queries.new_full((queries.shape[0],), float("-inf"))
    with ieee_matmul(queries):
        for codes in code_blocks(keys):
            for block in token_blocks(queries, keys[codes]):
                scores = queries[block] @ keys[codes].t()  # (block, codes)
                if bias is not None:
                    scores -= bias[codes]
                score, code = _best(scores)
                better = score > best[block]  # an equal one further on does not count
                best[block] = torch.where(better, score, best[block])
                tokens[block] = torch.where(better, code + codes.start, tokens[block])
    return tokens


def _best(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's highest score and the first place where it stands.

    On a CPU the highest number of a row is found many times faster than its place, so the place is looked for in one group only.
    """
    rows, codes = scores.shape
    if scores.is_cuda or codes % GROUP:
        return scores.max(dim=1)
    groups = scores.view(rows, codes // GROUP, GROUP)
    group = groups.amax(dim=2).argmax(dim=1)
    score, place = groups[torch.arange(rows), group].max(dim=1)
    return score, group * GROUP + place


@_assign.register_fake
def _(queries: Tensor, keys: Tensor, bias: Tensor | None) -> Tensor:
    return torch.empty(queries.shape[0], dtype=torch.int64, device=queries.device)


def token_counts(tokens: Tensor, codebook_size: int, backend: Backend = "auto") -> Tensor:
    """How many tokens fell on each code: (K,) int64. Tokens below zero are padding and fall on none."""
    flat = tokens.reshape(-1)
    if choose_backend(backend, tokens) == "triton" and codebook_size <= FEW_CODES:
        return fused.token_counts(flat, codebook_size)
    real = flat >= 0
    counts = torch.zeros(codebook_size, dtype=torch.int64, device=tokens.device)
    return counts.scatter_add(0, flat.clamp(min=0), real.to(torch.int64))


def token_sums(latents: Tensor, tokens: Tensor, codebook_size: int, backend: Backend = "auto") -> Tensor:
    """The sum of the latents (N, D) that fell on each code: (K, D), in float32. Tokens below zero fall on none.

    `triton` (CUDA) takes as long whatever the tokens are, and the same inputs give the same bits; where the latents learn, the
    plain implementation serves them.
    """
    if latents.dim() != 2 or tokens.shape != latents.shape[:1]:
        raise ArcvqError(
            f"expected latents (N, D) and tokens (N,), got shapes {tuple(latents.shape)} and {tuple(tokens.shape)}"
        )
    learning = torch.is_grad_enabled() and latents.requires_grad
    if choose_backend(backend, latents) == "triton" and not learning:
        return fused.token_sums(latents, tokens, codebook_size)
    real = (tokens >= 0).unsqueeze(1)
    rows = torch.where(real, latents.to(compute_dtype(latents)), 0.0)
    return rows.new_zeros(codebook_size, latents.shape[1]).index_add(0, tokens.clamp(min=0), rows)


def perplexity(counts: Tensor) -> Tensor:
    """exp(−Σ p log p) of the codes' frequencies: K when all are used alike, 1 when one takes everything, 0 when no token came."""
    total = counts.sum()
    return torch.exp(torch.special.entr(counts / total.clamp(min=1)).sum()) * (total > 0)
