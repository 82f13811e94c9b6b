"""Calls of kernels from autograd: on the right GPU, and without a second derivative. Does not import Triton."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from arcvq.errors import ArcvqError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def on_device(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Run the function with its first tensor's GPU as the current one, on which Triton launches kernels."""

    @wraps(function)
    def guarded(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        first = next(argument for argument in args if isinstance(argument, Tensor))
        where = first.get_device()  # −1 on a CPU, under the interpreter
        if where < 0 or where == torch.cuda.current_device():
            return function(*args, **kwargs)
        with torch.cuda.device(where):
            return function(*args, **kwargs)

    # Types rather than their names, which torch's custom operators would look up in this file.
    guarded.__signature__ = signature(function, eval_str=True)  # type: ignore[attr-defined]
    return guarded


def without_second_derivative(gradient: Tensor, name: str) -> Tensor:
    """The gradient that a backward pass returns; where it is differentiated again (create_graph), that raises an error that names
    the function. Torch's `once_differentiable` would treat the gradient as a constant if only saved tensors need one."""
    if not torch.is_grad_enabled():
        return gradient
    refusing: Tensor = _NoSecondDerivative.apply(gradient.detach().requires_grad_(), name)
    return refusing


class _NoSecondDerivative(torch.autograd.Function):
    """The identity, whose backward raises."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, name: str) -> Tensor:
        ctx.name = name
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Raise: there is no second derivative."""
        raise ArcvqError(
            f"the kernels' {ctx.name} has no second derivative: use backend reference for one, or compute on the CPU"
        )
