"""Upkeep that rides on an optimizer, for a training loop that is not ours."""

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


# Optimizer steps without an update before the warning; and forward passes, where no parameter shows the steps (gradient
# accumulation takes many for one step).
STEPS_WITHOUT_UPDATE = 20
PASSES_WITHOUT_UPDATE = 128


class UpdateReminder:
    """Warns once when training goes on without `after_step` or `attach`."""

    def __init__(self) -> None:
        self.warned = False
        self.reset()

    def reset(self) -> None:
        """The quantizer was updated."""
        self.steps, self.passes, self.version = 0, 0, -1

    def note_pass(self, quantizer: Quantizer) -> None:
        """A forward pass in training. Parameters that an optimizer has changed since the last one show a step."""
        version = sum(parameter._version for parameter in quantizer.parameters())
        self.steps += self.version not in (-1, version)
        self.passes, self.version = self.passes + 1, version
        overdue = self.steps > STEPS_WITHOUT_UPDATE or self.passes > PASSES_WITHOUT_UPDATE
        if overdue and not self.warned and not quantizer.frozen and quantizer.needs_updates:
            self.warned = True
            warnings.warn(
                f"{type(quantizer).__name__} was trained for {self.steps or self.passes} {'steps' if self.steps else 'forward passes'} "
                "without an update: schedules stand still, and codes are neither bounded nor moved. Call after_step(output) after "
                "each optimizer step, or attach(optimizer) once; eval() if this is no training",
                stacklevel=3,
            )


class Attachment:
    """Notes an output when its gradient arrives, and updates the quantizer when the optimizer has stepped.

    An output whose gradient never comes (evaluation, the first pass of activation checkpointing, a discriminator's pass on
    detached images) is never noted. A step that a GradScaler skipped leaves nothing behind.
    """

    def __init__(self, quantizer: Quantizer, optimizer: Optimizer | None) -> None:
        """Without an optimizer: whichever steps and holds the quantizer's parameters."""
        self.quantizer = quantizer
        self.optimizer = None if optimizer is None else _innermost(optimizer)
        self.noted: list[UpdateInputs] = []
        self._handle: RemovableHandle | None = None
        if self.optimizer is None:
            _register_global_hook()
            _to_any_optimizer.add(self)
            return
        if not self._holds_parameters(self.optimizer):
            raise ArcvqError(
                "this optimizer holds none of the quantizer's parameters: attach the one that trains the codebook"
            )
        self._handle = self.optimizer.register_step_post_hook(self._stepped)

    def watch(self, output: Quantized) -> None:
        if torch.compiler.is_compiling():
            raise ArcvqError(
                "attach is for eager loops: with torch.compile call after_step(output) after the optimizer's step"
            )
        # Inside a backward this is activation checkpointing running the forward again: the gradients are on their way.
        in_backward = torch._C._current_graph_task_id() != -1
        if self.noted and not in_backward and self._gradients_were_dropped():
            self.noted.clear()
        # The hooks must not hold the output: a tensor whose hook holds that tensor is never freed, nor is its graph.
        record = output.update_inputs

        def note(_: Tensor) -> None:
            if not any(noted is record for noted in self.noted):
                self.noted.append(record)

        for tensor in (output.quantized, output.loss, *output.losses.values()):
            if tensor.requires_grad:
                tensor.register_hook(note)

    def remove(self) -> None:
        _to_any_optimizer.discard(self)
        if self._handle is not None:
            self._handle.remove()

    def _gradients_were_dropped(self) -> bool:
        """True when the noted outputs' gradients are gone (zero_grad) or not finite: a GradScaler skipped, or will skip, their step."""
        if self.optimizer is None:  # none has stepped yet
            parameters = [p for p in self.quantizer.parameters() if p.requires_grad]
            if not parameters:
                return False
        else:
            parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None]
        return not 0 < float(get_total_norm(gradients, norm_type=math.inf)) < math.inf

    def _holds_parameters(self, optimizer: Optimizer) -> bool:
        """True also for a quantizer that has none to train."""
        own = {id(p) for p in self.quantizer.parameters() if p.requires_grad}
        return not own or any(id(p) in own for group in optimizer.param_groups for p in group["params"])

    def _stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        inputs, self.noted = self.noted, []
        # A fused optimizer steps even when the GradScaler found an overflow, and discards the step inside.
        overflow = getattr(optimizer, "found_inf", None)
        if inputs and not (overflow is not None and bool(overflow)):
            self.quantizer.update(inputs)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """A copied quantizer is attached to nothing."""
        return

    def __reduce__(self) -> tuple[Any, ...]:
        return _nothing, ()


# Attachments that wait for any optimizer. One global hook serves all: torch does not let a hook be removed while hooks run.
_to_any_optimizer: weakref.WeakSet[Attachment] = weakref.WeakSet()


@cache
def _register_global_hook() -> None:
    register_optimizer_step_post_hook(_any_stepped)


def _any_stepped(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for attachment in list(_to_any_optimizer):
        if attachment._holds_parameters(optimizer):
            attachment.optimizer = optimizer
            attachment._stepped(optimizer, args, kwargs)


def _innermost(optimizer: Optimizer) -> Optimizer:
    """Wrappers such as Accelerate's forward their steps to the optimizer inside, and have no hooks of their own."""
    inner = getattr(optimizer, "optimizer", None)
    return _innermost(inner) if isinstance(inner, Optimizer) else optimizer


def _nothing() -> None:
    return None
