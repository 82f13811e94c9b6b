"""The Triton kernels for autograd: PyTorch operators while a graph is traced, direct calls in eager mode.

Triton is imported by the first call, not with arcvq: it is slow to import, and absent on some platforms. Eager mode calls the
kernels directly because an operator's overhead takes longer than a small kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from arcvq.functional.kernels.calls import on_device, without_second_derivative
from arcvq.functional.kernels.tilings import padded_width
from arcvq.functional.similarity import MIN_NORM

Triple = tuple[Tensor, Tensor, Tensor]
Loss = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


# With more top tokens the kernels would compile slowly: the chunked implementation is used.
MAX_TOP_K = 32


def assign(queries: Tensor, keys: Tensor, bias: Tensor | None) -> Tensor:
    """Each query's nearest key, (N,) int64: argmax_j q·k_j/‖k_j‖, or with a bias (½‖k_j‖²) argmax_j (q·k_j − bias_j).

    Queries may be float32, bfloat16 or float16.
    """
    return _assign_operator(queries, keys, bias) if torch.compiler.is_compiling() else _assign(queries, keys, bias)


def token_sums(values: Tensor, tokens: Tensor, codebook_size: int) -> Tensor:
    """The sum of each code's values by the Triton kernels: (N, D), tokens (N,) → (K, D) float32, without a gradient."""
    impl = _token_sums_operator if torch.compiler.is_compiling() else _token_sums
    return impl(values, tokens, codebook_size)


def token_counts(tokens: Tensor, codebook_size: int) -> Tensor:
    """How many tokens (N,) each code has: (K,) int64, K ≤ MAX_HISTOGRAM_CODES."""
    impl = _token_counts_operator if torch.compiler.is_compiling() else _token_counts
    return impl(tokens, codebook_size)


def statistics(latents: Tensor, codes: Tensor, valid: Tensor | None, scale: float, top_k: int) -> Triple:
    """The `ArcStatistics` of latents and codes of any norm. Only the latents get a gradient."""
    return _arc_statistics_operator(latents, codes, valid, scale, top_k)


def finish(statistics: Triple, scale: float, margin: float, smallest_sine: float, monotone: bool) -> Tensor:
    """The mean of the codes' losses, from the statistics of all tokens."""
    return _finish_operator(*statistics, scale, margin, smallest_sine, monotone)[0].mean()


def arc_loss(
    latents: Tensor,
    codes: Tensor,
    valid: Tensor | None,
    scale: float,
    margin: float,
    top_k: int,
    smallest_sine: float,
    monotone: bool,
    search: bool,
) -> tuple[Tensor, Tensor]:
    """The ArcLoss of one whole batch, and with `search` each latent's nearest code by cosine, (N,), else an empty tensor."""
    if not torch.is_grad_enabled():
        latents = latents.detach()  # else the gradient would be computed with the loss
    arguments = (latents, codes, valid, scale, margin, top_k, smallest_sine, monotone, search)
    loss, tokens, *_ = _arc_loss_operator(*arguments) if torch.compiler.is_compiling() else _ArcLoss.apply(*arguments)
    return loss, tokens


# ---- search ------------------------------------------------------------------------------------------------------------


@on_device
def _assign(queries: Tensor, keys: Tensor, bias: Tensor | None) -> Tensor:
    """`assign` by the search kernels."""
    from arcvq.functional.kernels import search_kernels

    return search_kernels.assign(queries, keys, bias, MIN_NORM)


_assign_operator = torch.library.custom_op("arcvq::fused_assign", _assign, mutates_args=())


_assign_operator.register_fake(lambda queries, *_: queries.new_empty(queries.shape[0], dtype=torch.int64))


# ---- sums and counts by code -------------------------------------------------------------------------------------------


@on_device
def _token_sums(values: Tensor, tokens: Tensor, codebook_size: int) -> Tensor:
    """`token_sums` by the Triton kernels."""
    from arcvq.functional.kernels import sum_kernels

    return sum_kernels.token_sums(values, tokens, codebook_size)


@on_device
def _token_counts(tokens: Tensor, codebook_size: int) -> Tensor:
    """`token_counts` by the kernel."""
    from arcvq.functional.kernels import sum_kernels

    return sum_kernels.token_counts(tokens, codebook_size)


_token_sums_operator = torch.library.custom_op("arcvq::fused_token_sums", _token_sums, mutates_args=())
_token_counts_operator = torch.library.custom_op("arcvq::fused_token_counts", _token_counts, mutates_args=())


_token_sums_operator.register_fake(lambda values, _, size: values.new_empty(size, values.shape[1], dtype=torch.float32))


_token_counts_operator.register_fake(lambda tokens, size: tokens.new_empty(size, dtype=torch.int64))


# ---- the whole loss ------------------------------------------------------------------------------------------------------


@on_device
def _arc_loss(
    latents: Tensor,
    codes: Tensor,
    valid: Tensor | None,
    scale: float,
    margin: float,
    top_k: int,
    smallest_sine: float,
    monotone: bool,
    search: bool,
) -> Loss:
    """The loss, the tokens, and the tensors that `_arc_loss_backward` needs."""
    from arcvq.functional.kernels import arc_finish_kernels, arc_kernels, row_kernels, search_kernels

    latents, codes = latents.contiguous(), codes.contiguous()
    z, c = row_kernels.split_rows(latents, codes, MIN_NORM)
    tokens = search_kernels.search(latents, codes, z, c, None) if search else _empty_tokens(latents)
    bounded_margin = arc_finish_kernels.Margin(margin, smallest_sine, monotone)
    negatives, losses, *pulls = arc_kernels.statistics(z, c, valid, scale, top_k, bounded_margin)
    pulled_tokens, top_pulls, pushes = pulls
    return losses.mean(), tokens, negatives, pulled_tokens, top_pulls, pushes, z.halves, z.inverse, c.halves


@on_device
def _arc_loss_backward(
    grad: Tensor | None,
    latents: Tensor,
    valid: Tensor | None,
    negatives: Tensor,
    pulled_tokens: Tensor,
    top_pulls: Tensor,
    pushes: Tensor,
    z_halves: Tensor,
    z_inverse: Tensor,
    c_halves: Tensor,
    scale: float,
    margin: float,
    smallest_sine: float,
) -> Tensor:
    """The gradient of the latents, times `grad` where it is given."""
    from arcvq.functional.kernels import arc_backward_kernels, arc_finish_kernels, row_kernels

    z = row_kernels.SplitRows(z_halves, z_inverse)
    c = row_kernels.SplitRows(c_halves, negatives)  # any tensor: the codes' inverse norms are not used
    pulls = arc_finish_kernels.Pulls(pulled_tokens, top_pulls, pushes)
    max_slope = arc_finish_kernels.Margin(margin, smallest_sine, False).max_slope(scale)
    gradient_scale = max_slope / negatives.shape[0]
    return arc_backward_kernels.backward(
        latents.contiguous(), z, c, valid, negatives, pulls, grad, gradient_scale, scale
    )


class _ArcLoss(torch.autograd.Function):
    """The ArcLoss in eager mode. Forward also computes the gradient: its kernel starts sooner than from autograd's thread."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        """The loss and the tokens; saves the gradient if the latents need one."""
        latents, _, valid, scale, margin, _, smallest_sine, *_ = arguments
        loss, tokens, *rest = _arc_loss(*arguments)
        ctx.mark_non_differentiable(tokens)
        if ctx.needs_input_grad[0]:
            ctx.dtype = latents.dtype
            gradient = _arc_loss_backward(None, latents, valid, *rest, scale, margin, smallest_sine)  # type: ignore[call-arg, arg-type]
            ctx.save_for_backward(gradient)
        return loss, tokens

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The gradient that forward saved, times the loss's."""
        (gradient,) = ctx.saved_tensors
        gradient = (grads[0] * gradient).to(ctx.dtype)
        return without_second_derivative(gradient, "ArcLoss"), *(None,) * 8


_arc_loss_operator = torch.library.custom_op("arcvq::fused_arc_loss", _arc_loss, mutates_args=())
_arc_loss_backward_operator = torch.library.custom_op(
    "arcvq::fused_arc_loss_backward", _arc_loss_backward, mutates_args=()
)


@_arc_loss_operator.register_fake
def _empty_arc_loss_outputs(
    latents: Tensor, codes: Tensor, valid: Tensor | None, scale: float, margin: float, top_k: int, *rest: Any
) -> Loss:
    """Uninitialised outputs of `_arc_loss`, for tracing."""
    tokens, count, depth = latents.shape[0], codes.shape[0], padded_width(codes.shape[1])
    return (
        codes.new_empty(()),
        latents.new_empty(tokens, dtype=torch.int64) if rest[-1] else _empty_tokens(latents),
        codes.new_empty(count),
        codes.new_empty(top_k, count, dtype=torch.int32),
        codes.new_empty(top_k, count),
        codes.new_empty(count),
        codes.new_empty(2, tokens, depth, dtype=torch.float16),
        codes.new_empty(tokens),
        codes.new_empty(2, count, depth, dtype=torch.float16),
    )


_arc_loss_backward_operator.register_fake(
    lambda _, latents, *__: torch.empty_like(latents, memory_format=torch.contiguous_format)
)


def _arc_loss_setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    """Save for the backward pass of the ArcLoss operator."""
    latents, _, valid, ctx.scale, ctx.margin, _, ctx.smallest_sine, *_ = inputs
    _, tokens, *rest = output
    ctx.mark_non_differentiable(tokens, *rest)
    ctx.save_for_backward(latents, valid, *rest)


def _arc_loss_gradient(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    """The gradient of the ArcLoss operator for the latents."""
    gradient = _arc_loss_backward_operator(grad, *ctx.saved_tensors, ctx.scale, ctx.margin, ctx.smallest_sine)
    return gradient, *(None,) * 8


def _empty_tokens(latents: Tensor) -> Tensor:
    """No tokens: (0,), int64."""
    return latents.new_empty(0, dtype=torch.int64)


_arc_loss_operator.register_autograd(_arc_loss_gradient, setup_context=_arc_loss_setup_context)


# ---- statistics and finish apart, for several processes ------------------------------------------------------------------


@torch.library.custom_op("arcvq::fused_statistics", mutates_args=())
@on_device
def _arc_statistics_operator(latents: Tensor, codes: Tensor, valid: Tensor | None, scale: float, top_k: int) -> Triple:
    """For each code: its top-k cosines, their tokens, and log Σ exp of the other tokens' logits. Implements `statistics`."""
    from arcvq.functional.kernels import arc_kernels, row_kernels

    rows = row_kernels.split_rows(latents.contiguous(), codes.contiguous(), MIN_NORM)
    top_cosines, top_tokens, negatives = arc_kernels.statistics(*rows, valid, scale, top_k)
    return top_cosines, top_tokens, negatives


_arc_statistics_operator.register_fake(lambda latents, codes, valid, scale, top_k: _empty_statistics(codes, top_k))


@torch.library.custom_op("arcvq::fused_statistics_backward", mutates_args=())
@on_device
def _statistics_backward_operator(
    latents: Tensor,
    codes: Tensor,
    valid: Tensor | None,
    top_tokens: Tensor,
    negatives: Tensor,
    grad_top: Tensor,
    grad_negatives: Tensor,
    scale: float,
) -> Tensor:
    """The gradient of the ArcLoss statistics for the latents, by the kernels."""
    from arcvq.functional.kernels import arc_backward_kernels, row_kernels

    latents = latents.contiguous()
    rows = row_kernels.split_rows(latents, codes.contiguous(), MIN_NORM)
    pulls, largest = arc_backward_kernels.scale_pulls(
        top_tokens, grad_top.contiguous(), grad_negatives.contiguous(), scale
    )
    return arc_backward_kernels.backward(latents, *rows, valid, negatives, pulls, largest, 1.0, scale)


_statistics_backward_operator.register_fake(
    lambda latents, *_: torch.empty_like(latents, memory_format=torch.contiguous_format)
)


def _statistics_setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    """Save for the backward pass of the statistics operator."""
    latents, codes, valid, ctx.scale, _ = inputs
    _, top_tokens, negatives = output
    ctx.mark_non_differentiable(top_tokens)
    ctx.save_for_backward(latents, codes, valid, top_tokens, negatives)


def _statistics_gradient(
    ctx: Any, grad_top: Tensor, _: Tensor, grad_negatives: Tensor
) -> tuple[Tensor, None, None, None, None]:
    """The gradient of the statistics operator for the latents."""
    gradient = _statistics_backward_operator(*ctx.saved_tensors, grad_top, grad_negatives, ctx.scale)
    return gradient, None, None, None, None


_arc_statistics_operator.register_autograd(_statistics_gradient, setup_context=_statistics_setup_context)


@torch.library.custom_op("arcvq::fused_finish", mutates_args=())
@on_device
def _finish_operator(
    top_cosines: Tensor,
    top_tokens: Tensor,
    negatives: Tensor,
    scale: float,
    margin: float,
    smallest_sine: float,
    monotone: bool,
) -> Triple:
    """Each code's loss, and its slopes in the top cosines and in the negatives."""
    from arcvq.functional.kernels import arc_finish_kernels

    statistics = (top_cosines.contiguous(), top_tokens.contiguous(), negatives.contiguous())
    return arc_finish_kernels.finish(*statistics, scale, arc_finish_kernels.Margin(margin, smallest_sine, monotone))


_finish_operator.register_fake(
    lambda top, _, negatives, *__: tuple(torch.empty_like(each) for each in (negatives, top, negatives))
)


def _finish_setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    """Save the gradients that `_finish_gradient` needs."""
    _, *slopes = output
    ctx.mark_non_differentiable(*slopes)
    ctx.save_for_backward(*slopes)


def _finish_gradient(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    """The gradients of the finish operator for the three statistics."""
    slope_top, slope_negatives = ctx.saved_tensors
    return grad.unsqueeze(1) * slope_top, None, grad * slope_negatives, None, None, None, None


_finish_operator.register_autograd(_finish_gradient, setup_context=_finish_setup_context)


def _empty_statistics(codes: Tensor, top_k: int) -> Triple:
    """Uninitialised `ArcStatistics`, for tracing."""
    count, device = codes.shape[0], codes.device
    return (
        torch.empty(count, top_k, dtype=torch.float32, device=device),
        torch.empty(count, top_k, dtype=torch.int64, device=device),
        torch.empty(count, dtype=torch.float32, device=device),
    )
