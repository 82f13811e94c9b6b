"""The Triton kernels for autograd: as PyTorch operators where a graph is traced, and called directly where not.

Triton is imported by the first call, not with arcvq: it is slow to import, and absent on some platforms. The direct way is
there because an operator's own overhead is longer than a kernel of small size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from arcvq.errors import ArcvqError
from arcvq.functional.similarity import MIN_NORM
from arcvq.functional.tilings import padded_width

Triple = tuple[Tensor, Tensor, Tensor]
Loss = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


# More top tokens than this make the kernels long to compile: the chunked implementation serves them.
MOST_TOP_K = 32

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _on_device(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """On the GPU that the first tensor lies on: a kernel is launched on the current one, which may be another."""

    @wraps(function)
    def guarded(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        first = next(argument for argument in args if isinstance(argument, Tensor))
        where = first.get_device()  # −1 on a CPU, under the interpreter
        if where < 0 or where == torch.cuda.current_device():
            return function(*args, **kwargs)
        with torch.cuda.device(where):
            return function(*args, **kwargs)

    return guarded


def assign(queries: Tensor, keys: Tensor, bias: Tensor | None) -> Tensor:
    """argmax_j q·k_j/‖k_j‖, or with a bias (½‖k_j‖²) argmax_j (q·k_j − bias_j), for each row: (N,) int64. Queries may be float32,
    bfloat16 or float16.
    """
    return _assign_operator(queries, keys, bias) if torch.compiler.is_compiling() else _assign(queries, keys, bias)


def token_sums(values: Tensor, tokens: Tensor, codebook_size: int) -> Tensor:
    """The sum of the values (N, D) that fell on each code: (K, D) float32. It has no gradient."""
    impl = _sums_operator if torch.compiler.is_compiling() else _sums
    return impl(values, tokens, codebook_size)


def token_counts(tokens: Tensor, codebook_size: int) -> Tensor:
    """How many tokens (N,) fell on each code: (K,) int64, of MAX_HISTOGRAM_CODES at most."""
    impl = _counts_operator if torch.compiler.is_compiling() else _counts
    return impl(tokens, codebook_size)


def statistics(latents: Tensor, codes: Tensor, valid: Tensor | None, scale: float, top_k: int) -> Triple:
    """Per-code statistics of latents and codes of any length: the cosines are taken inside. Only the latents learn."""
    return _statistics_operator(latents, codes, valid, scale, top_k)


def finish(statistics: Triple, scale: float, margin: float, smallest_sine: float, monotone: bool) -> Tensor:
    """The mean of the codes' losses."""
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
    """Statistics and finish in one, for a batch that is all here; with `search` each latent's nearest code by cosine as well,
    which reads the same rows: the loss and tokens (N,), or (0,)."""
    if not torch.is_grad_enabled():
        latents = latents.detach()  # or the gradient would be taken with the loss, for nobody
    arguments = (latents, codes, valid, scale, margin, top_k, smallest_sine, monotone, search)
    loss, tokens, *_ = _loss_operator(*arguments) if torch.compiler.is_compiling() else _Loss.apply(*arguments)
    return loss, tokens


# ---- search ------------------------------------------------------------------------------------------------------------


@_on_device
def _assign(queries: Tensor, keys: Tensor, bias: Tensor | None) -> Tensor:
    from arcvq.functional import search_kernels

    return search_kernels.assign(queries, keys, bias, MIN_NORM)


_assign_operator = torch.library.custom_op("arcvq::fused_assign", _assign, mutates_args=())


@_assign_operator.register_fake
def _(queries: Tensor, keys: Tensor, bias: Tensor | None) -> Tensor:
    return torch.empty(queries.shape[0], dtype=torch.int64, device=queries.device)


# ---- sums and counts by code -------------------------------------------------------------------------------------------


@_on_device
def _sums(values: Tensor, tokens: Tensor, codebook_size: int) -> Tensor:
    from arcvq.functional import sum_kernels

    return sum_kernels.token_sums(values, tokens, codebook_size)


@_on_device
def _counts(tokens: Tensor, codebook_size: int) -> Tensor:
    from arcvq.functional import sum_kernels

    return sum_kernels.token_counts(tokens, codebook_size)


_sums_operator = torch.library.custom_op("arcvq::fused_token_sums", _sums, mutates_args=())
_counts_operator = torch.library.custom_op("arcvq::fused_token_counts", _counts, mutates_args=())


@_sums_operator.register_fake
def _(values: Tensor, tokens: Tensor, codebook_size: int) -> Tensor:
    return values.new_empty(codebook_size, values.shape[1], dtype=torch.float32)


@_counts_operator.register_fake
def _(tokens: Tensor, codebook_size: int) -> Tensor:
    return tokens.new_empty(codebook_size, dtype=torch.int64)


# ---- the whole loss ------------------------------------------------------------------------------------------------------


@_on_device
def _forward(
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
    """The loss, the tokens, and what the loss's backward needs."""
    from arcvq.functional import arc_finish_kernels, arc_kernels, row_kernels, search_kernels

    latents, codes = latents.contiguous(), codes.contiguous()
    z, c = row_kernels.split_rows(latents, codes, MIN_NORM)
    tokens = search_kernels.search(latents, codes, z, c, None) if search else _no_tokens(latents)
    widening = arc_finish_kernels.Margin(margin, smallest_sine, monotone)
    negatives, losses, *pulls = arc_kernels.statistics(z, c, valid, scale, top_k, widening)
    tops, top_pulls, pushes = pulls
    return losses.mean(), tokens, negatives, tops, top_pulls, pushes, z.halves, z.inverse, c.halves


@_on_device
def _backward(
    grad: Tensor | None,
    latents: Tensor,
    valid: Tensor | None,
    negatives: Tensor,
    tops: Tensor,
    top_pulls: Tensor,
    pushes: Tensor,
    z_halves: Tensor,
    z_inverse: Tensor,
    c_halves: Tensor,
    scale: float,
    margin: float,
    smallest_sine: float,
) -> Tensor:
    from arcvq.functional import arc_backward_kernels, arc_finish_kernels, row_kernels

    z = row_kernels.Rows(z_halves, z_inverse)
    c = row_kernels.Rows(c_halves, negatives)  # the codes' lengths are not asked for
    pulls = arc_finish_kernels.Pulls(tops, top_pulls, pushes)
    shrink = arc_finish_kernels.Margin(margin, smallest_sine, False).steepest(scale) / negatives.shape[0]
    return arc_backward_kernels.backward(latents.contiguous(), z, c, valid, negatives, pulls, grad, shrink, scale)


class _Loss(torch.autograd.Function):
    """The direct way. It takes the gradient together with the loss: a kernel is launched sooner from here than from the engine's
    thread, which is left with one product."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        latents, _, valid, scale, margin, _, smallest_sine, *_ = arguments
        loss, tokens, *rest = _forward(*arguments)
        ctx.mark_non_differentiable(tokens)
        if ctx.needs_input_grad[0]:
            ctx.dtype = latents.dtype
            gradient = _backward(None, latents, valid, *rest, scale, margin, smallest_sine)  # type: ignore[call-arg, arg-type]
            ctx.save_for_backward(gradient)
        return loss, tokens

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (gradient,) = ctx.saved_tensors
        gradient = (grads[0] * gradient).to(ctx.dtype)
        if torch.is_grad_enabled():  # asked for with create_graph
            gradient = _Last.apply(gradient.detach().requires_grad_())
        return gradient, *(None,) * 8


class _Last(torch.autograd.Function):
    """A gradient that has none in turn, and says so. Torch's `once_differentiable` would let it pass for a constant, because the
    latents are not among what its backward was given."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise ArcvqError("the kernels' ArcLoss has no second derivative: use backend reference for one")


_loss_operator = torch.library.custom_op("arcvq::fused_arc_loss", _forward, mutates_args=())
_loss_backward_operator = torch.library.custom_op("arcvq::fused_arc_loss_backward", _backward, mutates_args=())


@_loss_operator.register_fake
def _(
    latents: Tensor, codes: Tensor, valid: Tensor | None, scale: float, margin: float, top_k: int, *rest: Any
) -> Loss:
    tokens, count, depth = latents.shape[0], codes.shape[0], padded_width(codes.shape[1])
    return (
        codes.new_empty(()),
        latents.new_empty(tokens, dtype=torch.int64) if rest[-1] else _no_tokens(latents),
        codes.new_empty(count),
        codes.new_empty(top_k, count, dtype=torch.int32),
        codes.new_empty(top_k, count),
        codes.new_empty(count),
        codes.new_empty(2, tokens, depth, dtype=torch.float16),
        codes.new_empty(tokens),
        codes.new_empty(2, count, depth, dtype=torch.float16),
    )


@_loss_backward_operator.register_fake
def _(grad: Tensor, latents: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(latents, memory_format=torch.contiguous_format)


def _loss_setup(ctx: Any, inputs: Any, output: Any) -> None:
    latents, _, valid, ctx.scale, ctx.margin, _, ctx.smallest_sine, *_ = inputs
    _, tokens, *rest = output
    ctx.mark_non_differentiable(tokens, *rest)
    ctx.save_for_backward(latents, valid, *rest)


def _loss_gradient(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    gradient = _loss_backward_operator(grad, *ctx.saved_tensors, ctx.scale, ctx.margin, ctx.smallest_sine)
    return gradient, *(None,) * 8


def _no_tokens(latents: Tensor) -> Tensor:
    return latents.new_empty(0, dtype=torch.int64)


_loss_operator.register_autograd(_loss_gradient, setup_context=_loss_setup)


# ---- its two halves, between which several processes merge ---------------------------------------------------------------


@torch.library.custom_op("arcvq::fused_statistics", mutates_args=())
@_on_device
def _statistics_operator(latents: Tensor, codes: Tensor, valid: Tensor | None, scale: float, top_k: int) -> Triple:
    from arcvq.functional import arc_kernels, row_kernels

    rows = row_kernels.split_rows(latents.contiguous(), codes.contiguous(), MIN_NORM)
    top_cosines, top_tokens, negatives = arc_kernels.statistics(*rows, valid, scale, top_k)
    return top_cosines, top_tokens, negatives


@_statistics_operator.register_fake
def _(latents: Tensor, codes: Tensor, valid: Tensor | None, scale: float, top_k: int) -> Triple:
    return _like_statistics(codes, top_k)


@torch.library.custom_op("arcvq::fused_statistics_backward", mutates_args=())
@_on_device
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
    from arcvq.functional import arc_backward_kernels, row_kernels

    latents = latents.contiguous()
    rows = row_kernels.split_rows(latents, codes.contiguous(), MIN_NORM)
    pulls, largest = arc_backward_kernels.pulls_of(
        top_tokens, grad_top.contiguous(), grad_negatives.contiguous(), scale
    )
    return arc_backward_kernels.backward(latents, *rows, valid, negatives, pulls, largest, 1.0, scale)


@_statistics_backward_operator.register_fake
def _(latents: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(latents, memory_format=torch.contiguous_format)


def _statistics_setup(ctx: Any, inputs: Any, output: Any) -> None:
    latents, codes, valid, ctx.scale, _ = inputs
    _, top_tokens, negatives = output
    ctx.mark_non_differentiable(top_tokens)
    ctx.save_for_backward(latents, codes, valid, top_tokens, negatives)


def _statistics_gradient(
    ctx: Any, grad_top: Tensor, _: Tensor, grad_negatives: Tensor
) -> tuple[Tensor, None, None, None, None]:
    gradient = _statistics_backward_operator(*ctx.saved_tensors, grad_top, grad_negatives, ctx.scale)
    return gradient, None, None, None, None


_statistics_operator.register_autograd(_statistics_gradient, setup_context=_statistics_setup)


@torch.library.custom_op("arcvq::fused_finish", mutates_args=())
@_on_device
def _finish_operator(
    top_cosines: Tensor,
    top_tokens: Tensor,
    negatives: Tensor,
    scale: float,
    margin: float,
    smallest_sine: float,
    monotone: bool,
) -> Triple:
    """Each code's loss and its two slopes."""
    from arcvq.functional import arc_finish_kernels

    statistics = (top_cosines.contiguous(), top_tokens.contiguous(), negatives.contiguous())
    return arc_finish_kernels.finish(*statistics, scale, arc_finish_kernels.Margin(margin, smallest_sine, monotone))


@_finish_operator.register_fake
def _(top_cosines: Tensor, top_tokens: Tensor, negatives: Tensor, *_: Any) -> Triple:
    return torch.empty_like(negatives), torch.empty_like(top_cosines), torch.empty_like(negatives)


def _finish_setup(ctx: Any, inputs: Any, output: Any) -> None:
    _, *slopes = output
    ctx.mark_non_differentiable(*slopes)
    ctx.save_for_backward(*slopes)


def _finish_gradient(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    slope_top, slope_negatives = ctx.saved_tensors
    return grad.unsqueeze(1) * slope_top, None, grad * slope_negatives, None, None, None, None


_finish_operator.register_autograd(_finish_gradient, setup_context=_finish_setup)


def _like_statistics(codes: Tensor, top_k: int) -> Triple:
    count, device = codes.shape[0], codes.device
    return (
        torch.empty(count, top_k, dtype=torch.float32, device=device),
        torch.empty(count, top_k, dtype=torch.int64, device=device),
        torch.empty(count, dtype=torch.float32, device=device),
    )
