"""Updates of a quantizer by its optimizer's steps, for any eager training loop, and a warning where there are none."""

from __future__ import annotations

import math
import warnings
import weakref
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from arcvq.errors import ArcvqError
from arcvq.quantizers.quantized import Quantized, UpdateInputs

if TYPE_CHECKING:
    from arcvq.quantizers.base import Quantizer


# Optimizer steps without an update before the warning; and forward passes, of which there may be many per step: of a quantizer with
# parameters that do not change, and of one without parameters, which cannot see the steps.
STEPS_WITHOUT_UPDATE = 20
FORWARDS_WITHOUT_UPDATE = 128
FORWARDS_WITHOUT_PARAMETERS = 40


class UpdateReminder:
    """Warns once when a quantizer is trained without `after_step` or `attach`."""

    def __init__(self) -> None:
        self.warned = False
        self.reset()

    def reset(self) -> None:
        """Start counting again, after an update."""
        self.steps, self.forwards, self.version = 0, 0, -1

    def count_forward(self, quantizer: Quantizer) -> None:
        """Count a forward pass in training, and a step if parameters changed since the last; warn when an update is overdue."""
        versions = [parameter._version for parameter in quantizer.parameters()]
        version, limit = sum(versions), FORWARDS_WITHOUT_UPDATE if versions else FORWARDS_WITHOUT_PARAMETERS
        self.steps += self.version not in (-1, version)
        self.forwards, self.version = self.forwards + 1, version
        overdue = self.steps > STEPS_WITHOUT_UPDATE or self.forwards > limit
        if overdue and not self.warned and not quantizer.frozen and quantizer.needs_updates:
            self.warned = True
            warnings.warn(
                f"{type(quantizer).__name__} was trained for {self.steps or self.forwards} {'steps' if self.steps else 'forward passes'} "
                "without an update: schedules do not advance, and codes are neither bounded nor moved. Call after_step(output) after "
                "each optimizer step, or attach(optimizer) once; call eval() if this is no training",
                stacklevel=3,
            )


class Attachment:
    """Updates the quantizer after each optimizer step, with the outputs whose gradient was computed.

    An output without a gradient (evaluation, the first pass of activation checkpointing, a discriminator's pass on detached
    images) does not count, and neither does one whose step a GradScaler skipped.
    """

    def __init__(self, quantizer: Quantizer, optimizer: Optimizer | None) -> None:
        """Without an optimizer it waits for any optimizer that holds the quantizer's parameters."""
        self.quantizer = quantizer
        self.optimizer = None if optimizer is None else _unwrap_optimizer(optimizer)
        self.pending: list[UpdateInputs] = []
        self._handle: RemovableHandle | None = None
        if self.optimizer is None:
            _register_global_hook()
            _without_optimizer.add(self)
            return
        if not self._holds_parameters(self.optimizer):
            raise ArcvqError(
                "this optimizer holds none of the quantizer's parameters: attach the one that trains the codebook"
            )
        self._handle = self.optimizer.register_step_post_hook(self._on_step)

    def track(self, output: Quantized) -> None:
        """Register hooks: when backward reaches this output, it becomes one of those that the next update uses."""
        if torch.compiler.is_compiling():
            raise ArcvqError(
                "attach is for eager loops: with torch.compile call after_step(output) after the optimizer's step"
            )
        # Inside a backward this is activation checkpointing, which runs the forward again: the gradients are still to come.
        in_backward = torch._C._current_graph_task_id() != -1
        if self.pending and not in_backward and self._gradients_were_dropped():
            self.pending.clear()
        # The hooks must not hold the output: a tensor whose hook holds that tensor is never freed, nor is its graph.
        inputs = output.update_inputs

        def add_pending(_: Tensor) -> None:
            if not any(each is inputs for each in self.pending):
                self.pending.append(inputs)

        for tensor in (output.quantized, output.loss, *output.losses.values()):
            if tensor.requires_grad:
                tensor.register_hook(add_pending)

    def remove(self) -> None:
        """Stop updating the quantizer."""
        _without_optimizer.discard(self)
        if self._handle is not None:
            self._handle.remove()

    def _gradients_were_dropped(self) -> bool:
        """Whether the pending outputs' gradients are zeroed or not finite: a GradScaler skipped, or will skip, their step."""
        if self.optimizer is None:  # no step yet
            parameters = [p for p in self.quantizer.parameters() if p.requires_grad]
            if not parameters:
                return False
        else:
            parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None]
        return not 0 < float(get_total_norm(gradients, norm_type=math.inf)) < math.inf

    def _holds_parameters(self, optimizer: Optimizer) -> bool:
        """Whether the optimizer trains a parameter of the quantizer, or the quantizer has none to train."""
        own = {id(p) for p in self.quantizer.parameters() if p.requires_grad}
        return not own or any(id(p) in own for group in optimizer.param_groups for p in group["params"])

    def _on_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """The optimizer's hook: update the quantizer with the pending outputs, unless the step was skipped."""
        inputs, self.pending = self.pending, []
        # A fused optimizer steps even when the GradScaler found an overflow, and discards the step inside.
        overflow = getattr(optimizer, "found_inf", None)
        if inputs and not (overflow is not None and bool(overflow)):
            self.quantizer.update(inputs)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """A copied quantizer is not attached: its attachment is None."""
        return

    def __reduce__(self) -> tuple[Any, ...]:
        """An unpickled quantizer is not attached: its attachment is None."""
        return _return_none, ()


# Attachments that wait for any optimizer. They share one global hook: torch does not let a hook be removed while hooks run.
_without_optimizer: weakref.WeakSet[Attachment] = weakref.WeakSet()


@cache
def _register_global_hook() -> None:
    """Call `_on_any_step` after every optimizer's step; registered once."""
    register_optimizer_step_post_hook(_on_any_step)


def _on_any_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Update the waiting quantizers whose parameters this optimizer holds."""
    for attachment in list(_without_optimizer):
        if attachment._holds_parameters(optimizer):
            attachment.optimizer = optimizer
            attachment._on_step(optimizer, args, kwargs)


def _unwrap_optimizer(optimizer: Optimizer) -> Optimizer:
    """The optimizer inside wrappers such as Accelerate's, which have no hooks of their own."""
    inner = getattr(optimizer, "optimizer", None)
    return _unwrap_optimizer(inner) if isinstance(inner, Optimizer) else optimizer


def _return_none() -> None:
    return None
