"""One training step as a function of its batch: device work and nothing else, so that it can be captured as a CUDA graph."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import FunctionType, MethodType
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from torch import Tensor, nn

from arcvq.data.source import Batch, Source
from arcvq.tasks.parameters import set_trained, trained_parameters
from arcvq.tasks.task import StepOutput, Task


@dataclass(frozen=True)
class StepResult:
    """The scalars of one step, on the device."""

    terms: dict[str, Tensor]  # loss terms by name, weighted, over the whole batch
    stats: dict[str, Tensor]  # of the last micro-batch
    losses: dict[str, Tensor]  # by network: the sum of its terms
    nonfinite: Tensor


@dataclass
class Step:
    """`step(batch, weights, phase)`: for each network that learns in the phase: loss, gradients, optimizer, `after_step`, average.

    networks         the task's networks as Accelerate prepared them, by name
    optimizers       as Accelerate prepared them, by name
    clips            largest norm of the gradient, by name
    averages         weight averages, by name; `decay` is theirs
    compile_options  compile `task.loss` and `task.after_step` with these; None: run them as they are
    compiled_from    batches with fewer samples run uncompiled: an epoch's smaller last batch is not worth a compilation
    """

    accelerator: Accelerator
    task: Task
    source: Source
    networks: Mapping[str, nn.Module]
    optimizers: Mapping[str, AcceleratedOptimizer]
    clips: Mapping[str, float | None] = field(default_factory=dict)
    averages: Mapping[str, nn.Module] = field(default_factory=dict)
    decay: float = 0.0
    compile_options: dict[str, Any] | None = None
    compiled_from: int = 1

    def __post_init__(self) -> None:
        self.compiled = (self.task.loss, self.task.after_step)
        if self.compile_options is not None:
            loss = torch.compile(with_own_code(self.task.loss), dynamic=False, options=self.compile_options)
            self.compiled = (loss, torch.compile(with_own_code(self.task.after_step), dynamic=False))

    def __call__(self, batch: Batch, weights: Sequence[float] = (1.0,), phase: Hashable = None) -> StepResult:
        """`weights`: the share of the global batch that each micro-batch holds, one number per micro-batch."""
        large = len(next(iter(batch.values()))) >= self.compiled_from
        functions = self.compiled if large else (self.task.loss, self.task.after_step)
        parts = split(self.source.fetch(batch), len(weights))
        shared: list[dict[str, Any]] = [{} for _ in parts]
        terms: dict[str, Tensor] = {}
        stats: dict[str, Tensor] = {}
        losses: dict[str, Tensor] = {}
        nonfinite: list[Tensor] = []
        trained = self.task.trained(phase)
        for name in trained:
            if len(self.networks) > 1:
                self._focus(name, trained)
            outputs = self._update(name, parts, shared, weights, phase, functions)
            for output, weight in zip(outputs, weights):
                for key, term in output.terms.items():
                    own = term if weight == 1 else weight * term
                    terms[key] = terms[key] + own if key in terms else own
                if output.nonfinite is not None:
                    nonfinite.append(output.nonfinite)
            losses[name] = torch.stack([terms[key] for key in outputs[-1].terms]).sum()
            stats |= outputs[-1].stats
        found = torch.stack(nonfinite).sum() if nonfinite else _count_nonfinite(losses)
        return StepResult(terms, stats, losses, found)

    def _update(
        self,
        name: str,
        parts: Sequence[Batch],
        shared: Sequence[dict[str, Any]],
        weights: Sequence[float],
        phase: Hashable,
        functions: tuple[Callable[..., StepOutput], Callable[..., None]],
    ) -> list[StepOutput]:
        """Train one network on all micro-batches: gradients, clipping, optimizer, `after_step`, average."""
        loss, after_step = functions
        network, optimizer = self.networks[name], self.optimizers[name]
        outputs = []
        for i, (part, common, weight) in enumerate(zip(parts, shared, weights)):
            with nullcontext() if i == len(parts) - 1 else self.accelerator.no_sync(network):
                output = loss(name, network, part, common, phase)
                self.accelerator.backward(output.loss if weight == 1 else weight * output.loss)
            common.update(output.shared)
            outputs.append(output)
        clip = self.clips.get(name)
        if clip is not None:
            self.accelerator.unscale_gradients(optimizer)
            nn.utils.clip_grad_norm_(trained_parameters(network), clip)
        optimizer.step()
        if not optimizer.step_was_skipped:
            after_step(name, [output.update for output in outputs], phase)
            if name in self.averages:
                update_average(self.averages[name], self.task.networks[name], self.decay)
        optimizer.zero_grad()
        return outputs

    def _focus(self, name: str, trained: Mapping[str, Sequence[str]]) -> None:
        """Gradients for this network alone."""
        for other, network in self.task.networks.items():
            set_trained(network, trained[name] if other == name else None)


@torch.no_grad()
def update_average(average: nn.Module, network: nn.Module, decay: float) -> None:
    """Parameters that learn: average ← decay·average + (1 − decay)·network. Frozen ones and buffers are copied.

    What learns now learns beside the frozen parameters as they are, not beside an average of them.
    """
    pairs = list(zip(average.parameters(), network.parameters()))
    learning = [pair for pair in pairs if pair[1].requires_grad]
    if learning:
        torch._foreach_lerp_([own for own, _ in learning], [other for _, other in learning], 1 - decay)
    frozen = [pair for pair in pairs if not pair[1].requires_grad]
    for own, other in [*frozen, *zip(average.buffers(), network.buffers())]:
        own.copy_(other)


def make_average(network: nn.Module) -> nn.Module:
    """A copy of the network, to be averaged."""
    average = copy.deepcopy(network).requires_grad_(False).eval()
    average.__dict__.pop("forward", None)  # Accelerate's wrapper, which would call the original
    return average


def split(batch: Batch, count: int) -> list[Batch]:
    """The batch in `count` micro-batches."""
    if count == 1:
        return [batch]
    parts = {name: tensor.tensor_split(count) for name, tensor in batch.items()}
    return [{name: pieces[i] for name, pieces in parts.items()} for i in range(count)]


def _count_nonfinite(losses: Mapping[str, Tensor]) -> Tensor:
    """How many of these losses are NaN or infinite."""
    return (~torch.stack(list(losses.values())).isfinite()).sum()


def with_own_code(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method with a copy of its code object. torch keeps only a few compilations per code object, those of finished trainings
    among them, and runs the rest uncompiled: without this the ninth training of a process would be slow."""
    bound: Any = method
    function = bound.__func__
    own = FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    return MethodType(own, bound.__self__)
