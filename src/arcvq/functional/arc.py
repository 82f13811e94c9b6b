"""ArcLoss (Eqs. 10 to 12): each code pulls its nearest tokens closer by an angular margin and pushes all others away.

It is computed in three parts, so that blocks of tokens, fused kernels and several processes share one definition: per-code
*statistics* of a shard of tokens, a *merge* of shards, and a *finish*, which makes them the loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from arcvq.errors import ArcvqError
from arcvq.functional import fused
from arcvq.functional.assign import assign
from arcvq.functional.chunks import Backend, check_search_shapes, choose_backend, code_blocks, token_blocks
from arcvq.functional.precision import compute_dtype, ieee_matmul, matmul, without_autocast
from arcvq.functional.similarity import unit

MINUS_INFINITY = float("-inf")
# The slope of cos(θ + m) in cos θ is infinite at θ = 0 and π: it stays constant where sin θ is smaller than this.
SMALLEST_SINE = 1e-3


class ArcStatistics(NamedTuple):
    """Per-code statistics of a shard of tokens. With fewer than k tokens the rest have cosine −inf and token −1."""

    top_cosines: Tensor  # (K, k) cosines of the k tokens nearest to each code
    top_tokens: Tensor  # (K, k) int64, their positions among the shard's tokens
    negatives: Tensor  # (K,) log Σ exp(s·cos θ) over the tokens outside the top k


def arc_loss(
    latents: Tensor,
    codebook: Tensor,
    scale: float = 10.0,
    margin: float = 0.1,
    top_k: int = 3,
    backend: Backend = "auto",
    *,
    stop_gradient: bool = True,
    monotone: bool = False,
    valid: Tensor | None = None,
) -> Tensor:
    """The ArcLoss L_A of latents (N, D) and codebook (K, D), a scalar (Eq. 11). With `stop_gradient` only the latents learn (Eq. 12).

    `valid` (N,) bool leaves padded tokens out. `monotone` changes the logit where θ + m exceeds π, see `margin_cosine`.
    `chunked` never holds more than a block of the K × N cosines, forward or backward; `triton` (CUDA) holds none in memory.
    """
    _check_batch(latents, codebook, top_k)
    learns = codebook.requires_grad and not stop_gradient
    if choose_backend(backend, latents) == "triton" and _use_kernels(learns, top_k):
        valid = _checked_mask(latents, valid, scale, top_k)
        codes = codebook.detach().to(torch.float32)
        return fused.arc_loss(latents, codes, valid, scale, margin, top_k, SMALLEST_SINE, monotone, False)[0]
    statistics = arc_statistics(
        latents, codebook, scale=scale, top_k=top_k, backend=backend, stop_gradient=stop_gradient, valid=valid
    )
    return arc_finish(statistics, scale=scale, margin=margin, monotone=monotone, backend=backend)


def assign_and_arc_loss(
    latents: Tensor,
    codebook: Tensor,
    scale: float = 10.0,
    margin: float = 0.1,
    top_k: int = 3,
    backend: Backend = "auto",
    *,
    stop_gradient: bool = True,
    monotone: bool = False,
    valid: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The tokens (N,) of the nearest codes by cosine, and the ArcLoss. The kernels compute both from one read of the latents."""
    learns = codebook.requires_grad and not stop_gradient
    if choose_backend(backend, latents) == "triton" and _use_kernels(learns, top_k):
        _check_batch(latents, codebook, top_k)
        valid = _checked_mask(latents, valid, scale, top_k)
        codes = codebook.detach().to(torch.float32)
        loss, tokens = fused.arc_loss(latents, codes, valid, scale, margin, top_k, SMALLEST_SINE, monotone, True)
        return tokens, loss
    loss = arc_loss(
        latents, codebook, scale, margin, top_k, backend, stop_gradient=stop_gradient, monotone=monotone, valid=valid
    )
    return assign(latents, codebook, "cosine", backend), loss


def _check_batch(latents: Tensor, codebook: Tensor, top_k: int) -> None:
    """Raise unless the shapes agree and there are at least top_k latents."""
    check_search_shapes(latents, codebook)
    if top_k > latents.shape[0]:
        raise ArcvqError(
            f"top_k is {top_k} but there are only {latents.shape[0]} latents: lower top_k or enlarge the batch"
        )


def arc_statistics(
    latents: Tensor,
    codebook: Tensor,
    *,
    scale: float,
    top_k: int,
    backend: Backend = "auto",
    stop_gradient: bool = True,
    valid: Tensor | None = None,
) -> ArcStatistics:
    """The per-code statistics of one shard of tokens, which may have fewer than top_k tokens, even none."""
    valid = _checked_mask(latents, valid, scale, top_k)
    with without_autocast(latents):
        dtype = compute_dtype(latents)
        codes = (codebook.detach() if stop_gradient else codebook).to(dtype)
        impl = choose_backend(backend, latents)
        if impl == "triton" and _use_kernels(codes.requires_grad, top_k):
            return ArcStatistics(*fused.statistics(latents, codes, valid, scale, top_k))
        unit_latents, unit_codes = unit(latents.to(dtype)), unit(codes)
        if impl == "reference":
            cosines = matmul(unit_codes, unit_latents.t())  # (K, N)
            return _statistics_from_cosines(cosines, valid, scale, top_k)
        return ArcStatistics(*_chunked_statistics(unit_latents, unit_codes, valid, scale, top_k))


def _use_kernels(codes_learn: bool, top_k: int) -> bool:
    """Whether the Triton kernels can be used: only the latents learn, as in the paper, and top_k is small."""
    return not codes_learn and top_k <= fused.MAX_TOP_K


def _checked_mask(latents: Tensor, valid: Tensor | None, scale: float, top_k: int) -> Tensor | None:
    """Check mask, scale and top_k; return the mask contiguous in memory."""
    if top_k < 1:
        raise ArcvqError(f"top_k must be at least 1, got {top_k}")
    if scale <= 0:
        raise ArcvqError(f"scale must be positive, got {scale}")
    if valid is None:
        return None
    if valid.dtype != torch.bool or valid.shape != latents.shape[:1]:
        raise ArcvqError(
            f"expected valid ({latents.shape[0]},) of bool, got {tuple(valid.shape)} of {valid.dtype}".replace(
                "torch.", ""
            )
        )
    return valid.contiguous()


def arc_merge(shards: Sequence[ArcStatistics], scale: float) -> ArcStatistics:
    """The statistics of all shards together. A token in the top k of its shard but not of all becomes a negative."""
    cosines = torch.cat([shard.top_cosines for shard in shards], dim=1)  # (K, shards · k)
    tokens = torch.cat([shard.top_tokens for shard in shards], dim=1)
    top_cosines, kept = cosines.topk(shards[0].top_cosines.shape[1], dim=1)
    evicted = log_sum_exp(scale * cosines.scatter(1, kept, MINUS_INFINITY))
    negatives = log_sum_exp(torch.stack([*(shard.negatives for shard in shards), evicted], dim=1))
    return ArcStatistics(top_cosines, tokens.gather(1, kept), negatives)


def arc_finish(
    statistics: ArcStatistics, *, scale: float, margin: float, monotone: bool = False, backend: Backend = "auto"
) -> Tensor:
    """The loss from the statistics of all tokens: mean_j softplus(negatives_j − log Σ_top exp(s·cos(θ + m)))."""
    if choose_backend(backend, statistics.negatives) == "triton":
        return fused.finish(statistics, scale, margin, SMALLEST_SINE, monotone)
    present = statistics.top_tokens >= 0
    cosines = torch.where(present, statistics.top_cosines, 0.0)
    logits = torch.where(present, scale * margin_cosine(cosines, margin, monotone), MINUS_INFINITY)
    positives = log_sum_exp(logits)  # (K,)
    seen = present.any(dim=1)
    # Without any token (all padding) the loss is 0, not −inf − (−inf).
    gap = torch.where(seen, statistics.negatives, 0.0) - torch.where(seen, positives, 0.0)
    return torch.where(seen, F.softplus(gap), 0.0).mean()


def margin_cosine(cosines: Tensor, margin: float, monotone: bool = False) -> Tensor:
    """cos(θ + m) of the cosines c = cos θ: c·cos m − sqrt(1 − c²)·sin m, with a bounded gradient.

    The slope in c, sin(θ + m)/sin θ, is infinite at c = ±1. Only the gradient is bounded; the value is exact.
    Beyond θ = π − m the value rises again with θ, as in the paper (only a nearest token more than π − m away is there);
    `monotone=True` continues it from −1 with slope 1 instead.
    """
    square = 1 - cosines.square()
    sine = square.detach().clamp(min=0).sqrt()
    value = cosines.detach().clamp(-1, 1) * math.cos(margin) - sine * math.sin(margin)
    # The gradient comes from the same curve with a parabola in place of sin θ near c = ±1, so that its slope is bounded.
    near = sine < SMALLEST_SINE
    bounded_sine = torch.where(near, square / (2 * SMALLEST_SINE), torch.where(near, 1.0, square).sqrt())
    bounded = cosines * math.cos(margin) - bounded_sine * math.sin(margin)
    if monotone:
        beyond = cosines < -math.cos(margin)
        value = torch.where(beyond, cosines.detach() + math.cos(margin) - 1, value)
        bounded = torch.where(beyond, cosines, bounded)
    # The bracket is exactly zero: the value is `value` to the bit, the derivatives of any order are those of `bounded`.
    return value + (bounded - bounded.detach())


def _statistics_from_cosines(
    cosines: Tensor, valid: Tensor | None, scale: float, top_k: int, overwrite: bool = False
) -> ArcStatistics:
    """The `ArcStatistics` of the whole matrix of cosines (K, n). `overwrite` changes the matrix in place, without a gradient."""
    tokens = cosines.shape[1]
    if valid is not None:
        cosines = (
            cosines.masked_fill_(~valid, MINUS_INFINITY) if overwrite else cosines.masked_fill(~valid, MINUS_INFINITY)
        )
    top_cosines, top_tokens = cosines.topk(min(top_k, tokens), dim=1)
    # The top tokens are left out of the sum, not subtracted from it: exp(s) of a near token would cancel the rest.
    if overwrite:
        negatives = torch.logsumexp(cosines.scatter_(1, top_tokens, MINUS_INFINITY).mul_(scale), dim=1)
    else:
        negatives = log_sum_exp(scale * cosines.scatter(1, top_tokens, MINUS_INFINITY))
    if valid is not None:
        top_tokens = torch.where(valid[top_tokens], top_tokens, -1)
    if tokens < top_k:
        top_cosines = F.pad(top_cosines, (0, top_k - tokens), value=MINUS_INFINITY)
        top_tokens = F.pad(top_tokens, (0, top_k - tokens), value=-1)
    return ArcStatistics(top_cosines, top_tokens, negatives)


def log_sum_exp(logits: Tensor) -> Tensor:
    """logsumexp over the last dimension. A row of −inf gives −inf and a zero gradient, where torch's gradient is NaN."""
    if logits.shape[-1] == 0:
        return logits.new_full(logits.shape[:-1], MINUS_INFINITY)
    empty = (logits == MINUS_INFINITY).all(dim=-1)
    total = torch.logsumexp(torch.where(empty.unsqueeze(-1), 0.0, logits), dim=-1)
    return torch.where(empty, MINUS_INFINITY, total)


@torch.library.custom_op("arcvq::arc_statistics", mutates_args=())
def _chunked_statistics(
    unit_latents: Tensor, unit_codes: Tensor, valid: Tensor | None, scale: float, top_k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """`ArcStatistics` of unit rows, block by block: never the whole matrix of cosines."""
    blocks = [
        _block_statistics(unit_latents, unit_codes[codes], valid, scale, top_k) for codes in code_blocks(unit_codes)
    ]
    top_cosines, top_tokens, negatives = (torch.cat(part) for part in zip(*blocks))
    return top_cosines, top_tokens, negatives


def _block_statistics(
    unit_latents: Tensor, unit_codes: Tensor, valid: Tensor | None, scale: float, top_k: int
) -> ArcStatistics:
    """Statistics of one block of codes, merged over all blocks of tokens."""
    codes = unit_codes.shape[0]
    merged = ArcStatistics(
        unit_codes.new_full((codes, top_k), MINUS_INFINITY),
        torch.full((codes, top_k), -1, dtype=torch.int64, device=unit_codes.device),
        unit_codes.new_full((codes,), MINUS_INFINITY),
    )
    with ieee_matmul(unit_latents):
        for block in token_blocks(unit_latents, unit_codes):
            cosines = unit_codes @ unit_latents[block].t()  # (K, block)
            part = _statistics_from_cosines(
                cosines, None if valid is None else valid[block], scale, top_k, overwrite=True
            )
            tokens = torch.where(part.top_tokens >= 0, part.top_tokens + block.start, -1)
            merged = arc_merge([merged, part._replace(top_tokens=tokens)], scale)
    return merged


@_chunked_statistics.register_fake
def _empty_chunked_statistics(
    unit_latents: Tensor, unit_codes: Tensor, valid: Tensor | None, scale: float, top_k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Uninitialised statistics, for tracing."""
    codes = unit_codes.shape[0]
    return (
        unit_codes.new_empty(codes, top_k),
        torch.empty(codes, top_k, dtype=torch.int64, device=unit_codes.device),
        unit_codes.new_empty(codes),
    )


@torch.library.custom_op("arcvq::arc_statistics_backward", mutates_args=())
def _chunked_statistics_backward(
    unit_latents: Tensor,
    unit_codes: Tensor,
    valid: Tensor | None,
    top_tokens: Tensor,
    negatives: Tensor,
    grad_top: Tensor,
    grad_negatives: Tensor,
    scale: float,
    codes_learn: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients of the unit latents and codes, block by block; those of the codes are 0 unless `codes_learn`."""
    grad_codes = torch.zeros_like(unit_codes)
    grad_latents = torch.zeros_like(unit_latents)
    pull = (scale * grad_negatives).unsqueeze(1)  # (K, 1)
    with ieee_matmul(unit_latents):
        for codes in code_blocks(unit_codes):
            keys = unit_codes[codes]
            for block in token_blocks(unit_latents, keys):
                latents = unit_latents[block]
                size = latents.shape[0]
                # d/dcos of the negatives' log-sum-exp is s·softmax. Gradients of top tokens of other blocks go to a spare column.
                weights = keys.new_empty(keys.shape[0], size + 1)
                inner = weights[:, :size]
                torch.matmul(keys, latents.t(), out=inner)
                inner.mul_(scale).sub_(negatives[codes].unsqueeze(1)).exp_().mul_(pull[codes])
                if valid is not None:
                    inner.masked_fill_(~valid[block], 0.0)
                here = (top_tokens[codes] >= block.start) & (top_tokens[codes] < block.stop)
                weights.scatter_(1, torch.where(here, top_tokens[codes] - block.start, size), grad_top[codes])
                grad_latents[block].addmm_(inner.t(), keys)
                if codes_learn:
                    grad_codes[codes].addmm_(inner, latents)
    return grad_latents, grad_codes


_chunked_statistics_backward.register_fake(
    lambda latents, codes, *_: (torch.empty_like(latents), torch.empty_like(codes))
)


def _statistics_setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    """Save for the backward pass what `_statistics_gradient` needs."""
    unit_latents, unit_codes, valid, ctx.scale, _ = inputs
    _, top_tokens, negatives = output
    ctx.mark_non_differentiable(top_tokens)
    ctx.save_for_backward(unit_latents, unit_codes, valid, top_tokens, negatives)


def _statistics_gradient(ctx, grad_top: Tensor, _: Tensor, grad_negatives: Tensor):  # type: ignore[no-untyped-def]
    """The gradient of the chunked statistics for latents and codes."""
    codes_learn = ctx.needs_input_grad[1]
    grads = (grad_top, grad_negatives, ctx.scale, codes_learn)
    grad_latents, grad_codes = _chunked_statistics_backward(*ctx.saved_tensors, *grads)
    return grad_latents, grad_codes if codes_learn else None, None, None, None


_chunked_statistics.register_autograd(_statistics_gradient, setup_context=_statistics_setup_context)
