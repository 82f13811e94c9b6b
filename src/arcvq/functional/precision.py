"""Full float32 in every context: autocast and the matmul-precision switch must not change a token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor


def compute_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype to compute in: float64 for float64 (tests and gradient checks), else float32."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _constant_when_traced(function: Callable[[], bool]) -> Callable[[], bool]:
    """torch.compiler.assume_constant_result without its import of torch._dynamo, which takes longer than torch's own."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@_constant_when_traced
def is_exporting() -> bool:
    """Whether torch.export is tracing. Evaluated at trace time: torch 2.11's compiler makes torch's own function True."""
    return torch.compiler.is_exporting()


@_constant_when_traced
def products_are_float32() -> bool:
    """Whether float32 products on a GPU are full float32. Evaluated at trace time: torch recompiles when the switch changes."""
    return torch.backends.cuda.matmul.fp32_precision in ("none", "ieee")


def without_autocast(tensor: Tensor) -> AbstractContextManager[None]:
    """A context without autocast on this tensor's device."""
    kind = tensor.device.type
    if not torch.compiler.is_compiling() and not torch.is_autocast_enabled(kind):
        return nullcontext()  # entering torch.autocast takes longer than a small kernel
    return torch.autocast(device_type=kind, enabled=False)


@contextmanager
def ieee_matmul(tensor: Tensor) -> Iterator[None]:
    """A context of full float32 products: no TF32 on a GPU, no bfloat16 on a CPU, no autocast.

    The losses switch autocast off, too, but their backward pass may run under it.
    """
    with matmul_precision("ieee"), without_autocast(tensor):
        yield


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """A context in which float32 products run in float32 (`ieee`) or, on a GPU, in TensorFloat-32 (`tf32`)."""
    switches: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    before = [switch.fp32_precision for switch in switches]
    for switch in switches:
        switch.fp32_precision = precision
    try:
        yield
    finally:
        for switch, value in zip(switches, before):
            switch.fp32_precision = value


@contextmanager
def convolution_precision(precision: str) -> Iterator[None]:
    """A context in which float32 convolutions on a GPU run in float32 (`ieee`) or TensorFloat-32 (`tf32`)."""
    if torch.compiler.is_compiling():  # a traced graph has the precision that held when it was compiled
        yield
        return
    # Only the convolutions' own setting: torch refuses to read its older allow_tf32 switch once the settings differ.
    convolutions = torch.backends.cudnn.conv  # type: ignore[attr-defined]  # set at import, unseen by mypy
    before = convolutions.fp32_precision
    convolutions.fp32_precision = precision
    try:
        yield
    finally:
        convolutions.fp32_precision = before


def ieee_convolutions() -> AbstractContextManager[None]:
    """A context of full float32 convolutions: TensorFloat-32, torch's default on NVIDIA GPUs, would change tokens and metrics."""
    return convolution_precision("ieee")


@torch.library.custom_op("arcvq::matmul", mutates_args=())
def _matmul(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in full float32."""
    with ieee_matmul(a):
        return a @ b


_matmul.register_fake(lambda a, b: a.new_empty(a.shape[0], b.shape[1]))


def _matmul_setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs)


def _matmul_backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:  # type: ignore[no-untyped-def]
    a, b = ctx.saved_tensors
    grad_a = _matmul(grad, b.t()) if ctx.needs_input_grad[0] else None
    grad_b = _matmul(a.t(), grad) if ctx.needs_input_grad[1] else None
    return grad_a, grad_b


_matmul.register_autograd(_matmul_backward, setup_context=_matmul_setup_context)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """a @ b of matrices in full float32. An exported program gets torch's own operator, so that it runs without arcvq."""
    return a @ b if is_exporting() else _matmul(a, b)


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """A context for measurements: no autocast, and no TensorFloat-32, which would change the fourth digit of a feature."""
    with ieee_convolutions(), torch.autocast(device.type, enabled=False):
        yield
