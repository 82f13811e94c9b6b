"""The Triton kernels as PyTorch operators: they go through torch.compile, CUDA graphs and DDP.

Triton is imported by the first call, not with arcvq: it is slow to import, and absent on some platforms.
"""

from __future__ import annotations

import torch
from torch import Tensor

from arcvq.functional.similarity import NO_DIRECTION

Triple = tuple[Tensor, Tensor, Tensor]


@torch.library.custom_op("arcvq::fused_assign", mutates_args=())
def assign(queries: Tensor, keys: Tensor, bias: Tensor | None) -> Tensor:
    """As `arcvq::assign`; queries may be float32, bfloat16 or float16 and are read as they are."""
    from arcvq.functional import kernels

    return kernels.assign(queries.contiguous(), keys.contiguous(), bias)


@assign.register_fake
def _(queries: Tensor, keys: Tensor, bias: Tensor | None) -> Tensor:
    return torch.empty(queries.shape[0], dtype=torch.int64, device=queries.device)


@torch.library.custom_op("arcvq::fused_statistics", mutates_args=())
def statistics(latents: Tensor, codes: Tensor, valid: Tensor | None, scale: float, top_k: int) -> Triple:
    """Statistics of latents and codes of any length: the cosines are taken inside. Only the latents learn."""
    from arcvq.functional import kernels

    return kernels.statistics(*_with_norms(latents, codes), valid, scale, top_k)


@statistics.register_fake
def _(latents: Tensor, codes: Tensor, valid: Tensor | None, scale: float, top_k: int) -> Triple:
    return _like_statistics(codes, top_k)


@torch.library.custom_op("arcvq::fused_statistics_backward", mutates_args=())
def statistics_backward(
    latents: Tensor,
    codes: Tensor,
    valid: Tensor | None,
    top_tokens: Tensor,
    negatives: Tensor,
    grad_top: Tensor,
    grad_negatives: Tensor,
    scale: float,
) -> Tensor:
    from arcvq.functional import kernels

    pulls = (top_tokens, negatives, grad_top.contiguous(), grad_negatives.contiguous())
    return kernels.statistics_backward(*_with_norms(latents, codes), valid, *pulls, scale, NO_DIRECTION)


@statistics_backward.register_fake
def _(latents: Tensor, *_) -> Tensor:  # type: ignore[no-untyped-def]
    return torch.empty_like(latents, memory_format=torch.contiguous_format)


@torch.library.custom_op("arcvq::fused_finish", mutates_args=())
def finish(
    top_cosines: Tensor,
    top_tokens: Tensor,
    negatives: Tensor,
    scale: float,
    margin: float,
    smallest_sine: float,
    monotone: bool,
) -> Triple:
    """Each code's loss and its two slopes, in one launch."""
    from arcvq.functional import kernels

    statistics = (top_cosines.contiguous(), top_tokens.contiguous(), negatives.contiguous())
    return kernels.finish(*statistics, scale, margin, smallest_sine, monotone)


@finish.register_fake
def _(top_cosines: Tensor, top_tokens: Tensor, negatives: Tensor, *_) -> Triple:  # type: ignore[no-untyped-def]
    return torch.empty_like(negatives), torch.empty_like(top_cosines), torch.empty_like(negatives)


def _with_norms(latents: Tensor, codes: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from arcvq.functional import kernels

    latents, codes = latents.contiguous(), codes.contiguous()
    return latents, codes, kernels.inverse_norms(latents, NO_DIRECTION), kernels.inverse_norms(codes, NO_DIRECTION)


def _like_statistics(codes: Tensor, top_k: int) -> Triple:
    count, device = codes.shape[0], codes.device
    return (
        torch.empty(count, top_k, dtype=torch.float32, device=device),
        torch.empty(count, top_k, dtype=torch.int64, device=device),
        torch.empty(count, dtype=torch.float32, device=device),
    )


def _statistics_setup(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    latents, codes, valid, ctx.scale, _ = inputs
    _, top_tokens, negatives = output
    ctx.mark_non_differentiable(top_tokens)
    ctx.save_for_backward(latents, codes, valid, top_tokens, negatives)


def _statistics_gradient(ctx, grad_top: Tensor, _: Tensor, grad_negatives: Tensor):  # type: ignore[no-untyped-def]
    return statistics_backward(*ctx.saved_tensors, grad_top, grad_negatives, ctx.scale), None, None, None, None


def _finish_setup(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    _, *slopes = output
    ctx.mark_non_differentiable(*slopes)
    ctx.save_for_backward(*slopes)


def _finish_gradient(ctx, grad: Tensor, *_):  # type: ignore[no-untyped-def]
    slope_top, slope_negatives = ctx.saved_tensors
    return grad.unsqueeze(1) * slope_top, None, grad * slope_negatives, None, None, None, None


statistics.register_autograd(_statistics_gradient, setup_context=_statistics_setup)
finish.register_autograd(_finish_gradient, setup_context=_finish_setup)
