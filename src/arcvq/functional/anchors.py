"""Where a code that nobody takes should go: the anchors of CVQ-VAE (Zheng and Vedaldi, ICCV 2023), and its contrastive term."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from arcvq.functional.arc import NEVER, log_sum_exp
from arcvq.functional.assign import assign
from arcvq.functional.chunks import Backend, token_blocks
from arcvq.functional.precision import compute_dtype, matmul, without_autocast
from arcvq.functional.relaxed import gumbel
from arcvq.functional.similarity import Metric, search_operands


def anchor_rate(usage: Tensor, decay: float) -> Tensor:
    """a_k = exp(−10·K·N_k / (1 − decay) − 1e-3), of the running shares N (K,): how far a code goes to its anchor.

    0.999 for a code that is never taken; e^−1000, which is 0, for one that has its fair share 1/K.
    """
    return torch.exp(-usage * usage.shape[0] * 10 / (1 - decay) - 1e-3)


@torch.no_grad()
def nearest_latents(
    codebook: Tensor, latents: Tensor, valid: Tensor | None, metric: Metric, backend: Backend, drawn: bool = False
) -> tuple[Tensor, Tensor]:
    """For each code (K, D) its most similar latent of (N, D), and how similar: (K, D), (K,). −inf when there is none.

    `drawn`: a latent drawn from the softmax of similarities over all tokens, and log Σ exp of them. Of several shards the most
    similar is the one with the largest number; a draw comes from each with the softmax of these numbers.
    """
    dtype = compute_dtype(latents)
    codes, latents = codebook.to(dtype), latents.to(dtype)
    if not latents.shape[0]:
        return torch.zeros_like(codes), codes.new_full((codes.shape[0],), NEVER)
    with without_autocast(latents):
        if not drawn:
            if (
                valid is not None
            ):  # padding becomes a second copy of a real latent: it wins nothing that the first does not
                latents = latents[
                    torch.where(valid, torch.arange(len(valid), device=valid.device), valid.int().argmax())
                ]
            chosen = assign(codes, latents, metric, backend)  # the search, with the two sides exchanged
            score = similarities(codes, latents[chosen], metric, rowwise=True)
        else:
            parts = []
            for block in token_blocks(codes, latents):
                scores = similarities(codes[block], latents, metric)  # (block, N)
                scores = scores if valid is None else scores.masked_fill(~valid, NEVER)
                parts.append((log_sum_exp(scores), (scores + gumbel(scores)).argmax(dim=1)))
            score, chosen = (torch.cat(each) for each in zip(*parts))
    if valid is not None:
        score = torch.where(valid.any(), score, NEVER)
    return latents[chosen], score


def similarities(codes: Tensor, latents: Tensor, metric: Metric, rowwise: bool = False) -> Tensor:
    """Cosines, or −‖z − e‖² up to a term of the code alone: (K, N), or (K,) for pairs of rows."""
    queries, keys, bias = search_operands(codes, latents, metric)
    scores = (queries * keys).sum(dim=-1) if rowwise else matmul(queries, keys.t())
    return scores if bias is None else 2 * (scores - bias)


def contrastive_loss(
    latents: Tensor, codebook: Tensor, metric: Metric = "cosine", temperature: float = 0.07, valid: Tensor | None = None
) -> Tensor:
    """Each code is drawn to its nearest tokens and driven from the farther half; only the codes learn.

    Per code: the positive is the mean similarity of the nearest max(1, N // K) tokens, the negatives are those of the farthest
    N // 2; cross-entropy over similarity / temperature, a mean over codes. Holds all K × N similarities.
    """
    with without_autocast(latents):
        dtype = compute_dtype(latents)
        latents, codebook = latents.detach().to(dtype), codebook.to(dtype)
        scores = similarities(codebook, latents, metric)  # (K, N)
        if metric == "euclidean":
            scores = scores - codebook.square().sum(dim=1, keepdim=True)
        if valid is None:
            valid = torch.ones(latents.shape[0], dtype=torch.bool, device=latents.device)
        ordered = scores.masked_fill(~valid, NEVER).sort(dim=1, descending=True).values
        count, rank = valid.sum(), torch.arange(latents.shape[0], device=latents.device)
        nearest = (count // codebook.shape[0]).clamp(min=1)
        positive = torch.where((rank < nearest) & (rank < count), ordered, 0.0).sum(dim=1) / nearest
        farther = (rank >= count - count // 2) & (rank < count)
        negatives = log_sum_exp(torch.where(farther, ordered, NEVER) / temperature)
        return torch.where(count > 0, F.softplus(negatives - positive / temperature), 0.0).mean()
