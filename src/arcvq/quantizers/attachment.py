"""Upkeep that rides on an optimizer, for a training loop that is not ours."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from arcvq.errors import ArcvqError
from arcvq.quantizers.quantized import Quantized, Record

if TYPE_CHECKING:
    from arcvq.quantizers.base import Quantizer


class Attachment:
    """Notes an output when its gradient arrives, and runs the upkeep when the optimizer has stepped.

    An output whose gradient never comes (evaluation, the first pass of activation checkpointing, a discriminator's pass on
    detached images) is never noted. A step that a GradScaler skipped leaves nothing behind.
    """

    def __init__(self, quantizer: Quantizer, optimizer: Optimizer) -> None:
        optimizer = _innermost(optimizer)
        own = {id(p) for p in quantizer.parameters() if p.requires_grad}
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if own and not own & held:
            raise ArcvqError(
                "this optimizer holds none of the quantizer's parameters: attach the one that trains the codebook"
            )
        self.quantizer = quantizer
        self.optimizer = optimizer
        self.noted: list[Record] = []
        self._handle = optimizer.register_step_post_hook(self._stepped)

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
        record = output.record

        def note(_: Tensor) -> None:
            if not any(noted is record for noted in self.noted):
                self.noted.append(record)

        for tensor in (output.quantized, output.loss, *output.losses.values()):
            if tensor.requires_grad:
                tensor.register_hook(note)

    def remove(self) -> None:
        self._handle.remove()

    def _gradients_were_dropped(self) -> bool:
        """True when the noted outputs' gradients are gone (zero_grad) or not finite: a GradScaler skipped, or will skip, their step."""
        gradients = [p.grad for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        return not 0 < float(get_total_norm(gradients, norm_type=math.inf)) < math.inf

    def _stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        records, self.noted = self.noted, []
        # A fused optimizer steps even when the GradScaler found an overflow, and discards the step inside.
        overflow = getattr(optimizer, "found_inf", None)
        if records and not (overflow is not None and bool(overflow)):
            self.quantizer.keep_up(records)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """A copied quantizer is attached to nothing."""
        return

    def __reduce__(self) -> tuple[Any, ...]:
        return _nothing, ()


def _innermost(optimizer: Optimizer) -> Optimizer:
    """Wrappers such as Accelerate's forward their steps to the optimizer inside, and have no hooks of their own."""
    inner = getattr(optimizer, "optimizer", None)
    return _innermost(inner) if isinstance(inner, Optimizer) else optimizer


def _nothing() -> None:
    return None
