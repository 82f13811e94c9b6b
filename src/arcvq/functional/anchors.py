"""CVQ-VAE (Zheng and Vedaldi, ICCV 2023): the anchors onto which unused codes move, and its contrastive term."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from arcvq.functional.arc import MINUS_INFINITY, log_sum_exp
from arcvq.functional.assign import assign
from arcvq.functional.chunks import Backend, token_blocks
from arcvq.functional.precision import compute_dtype, matmul, without_autocast
from arcvq.functional.relaxed import gumbel
from arcvq.functional.similarity import Metric, search_operands


def anchor_rate(usage: Tensor, decay: float) -> Tensor:
    """How far each code moves to its anchor, from 0 to 1: a_k = exp(−10·K·N_k / (1 − decay) − 1e-3), N (K,) the codes' usage.

    0.999 for a code that is never used; e^−1000, which is 0, for one whose usage is 1/K.
    """
    return torch.exp(-usage * usage.shape[0] * 10 / (1 - decay) - 1e-3)


@torch.no_grad()
def nearest_latents(
    codebook: Tensor, latents: Tensor, valid: Tensor | None, metric: Metric, backend: Backend, sample: bool = False
) -> tuple[Tensor, Tensor]:
    """Each code's most similar latent (K, D) and their similarity (K,), which is −inf without any latent.

    `sample`: a latent drawn from the softmax of its similarities, and log Σ exp of these. To merge shards take the one with the
    largest number; with `sample` draw one from the softmax of these numbers.
    """
    dtype = compute_dtype(latents)
    codes, latents = codebook.to(dtype), latents.to(dtype)
    if not latents.shape[0]:
        return torch.zeros_like(codes), codes.new_full((codes.shape[0],), MINUS_INFINITY)
    with without_autocast(latents):
        if not sample:
            if valid is not None:  # padding becomes a copy of the first real latent, which wins the ties between them
                rows = torch.arange(len(valid), device=valid.device)
                latents = latents[torch.where(valid, rows, valid.int().argmax())]
            chosen = assign(codes, latents, metric, backend)  # the search, with the two sides exchanged
            score = similarities(codes, latents[chosen], metric, rowwise=True)
        else:
            parts = []
            for block in token_blocks(codes, latents):
                scores = similarities(codes[block], latents, metric)  # (block, N)
                scores = scores if valid is None else scores.masked_fill(~valid, MINUS_INFINITY)
                parts.append((log_sum_exp(scores), (scores + gumbel(scores)).argmax(dim=1)))
            score, chosen = (torch.cat(each) for each in zip(*parts))
    if valid is not None:
        score = torch.where(valid.any(), score, MINUS_INFINITY)
    return latents[chosen], score


def similarities(codes: Tensor, latents: Tensor, metric: Metric, rowwise: bool = False) -> Tensor:
    """How similar each code is to each latent, (K, N), or row by row, (K,): cosines, or ‖e‖² − ‖z − e‖²."""
    queries, keys, bias = search_operands(codes, latents, metric)
    scores = (queries * keys).sum(dim=-1) if rowwise else matmul(queries, keys.t())
    return scores if bias is None else 2 * (scores - bias)


def contrastive_loss(
    latents: Tensor, codebook: Tensor, metric: Metric = "cosine", temperature: float = 0.07, valid: Tensor | None = None
) -> Tensor:
    """Cross-entropy of each code's nearest tokens against its farthest half, a mean over codes. Only the codes get a gradient.

    Logits are similarity / temperature: the positive is the mean over the nearest max(1, N // K) tokens, the negatives are the
    farthest N // 2. Holds all K × N similarities.
    """
    with without_autocast(latents):
        dtype = compute_dtype(latents)
        latents, codebook = latents.detach().to(dtype), codebook.to(dtype)
        scores = similarities(codebook, latents, metric)  # (K, N)
        if metric == "euclidean":
            scores = scores - codebook.square().sum(dim=1, keepdim=True)
        if valid is None:
            valid = torch.ones(latents.shape[0], dtype=torch.bool, device=latents.device)
        ordered = scores.masked_fill(~valid, MINUS_INFINITY).sort(dim=1, descending=True).values
        count, rank = valid.sum(), torch.arange(latents.shape[0], device=latents.device)
        nearest = (count // codebook.shape[0]).clamp(min=1)
        positive = torch.where((rank < nearest) & (rank < count), ordered, 0.0).sum(dim=1) / nearest
        farther = (rank >= count - count // 2) & (rank < count)
        negatives = log_sum_exp(torch.where(farther, ordered, MINUS_INFINITY) / temperature)
        return torch.where(count > 0, F.softplus(negatives - positive / temperature), 0.0).mean()
