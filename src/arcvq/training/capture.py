"""A training step captured as CUDA graphs: the host launches one graph instead of hundreds of kernels."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim import Optimizer

from arcvq.data.source import Batch, Source
from arcvq.errors import ArcvqError
from arcvq.tasks.task import Task
from arcvq.training.checkpoint import random_state, restore_random_state
from arcvq.training.config import TrainingConfig

# Steps before the capture, in which libraries choose their algorithms and compilers compile.
WARM_UP = 3

Result = TypeVar("Result")


def can_capture(training: TrainingConfig, accelerator: Accelerator, source: Source, task: Task) -> bool:
    """Whether this training's steps are captured. Fails if they cannot be and `training.capture` is always."""
    if training.capture == "never":
        return False
    blocker = capture_blocker(training, accelerator.device, accelerator.num_processes, source, task)
    if blocker is not None and training.capture == "always":
        raise ArcvqError(f"training.capture is always, but {blocker}: use auto or never")
    return blocker is None


def capture_blocker(
    training: TrainingConfig, device: torch.device, processes: int, source: Source, task: Task
) -> str | None:
    """Why a step cannot be captured, or None."""
    if device.type != "cuda":
        return f"a CUDA graph needs a CUDA device and this training runs on {device.type}"
    if processes > 1:
        return f"{processes} processes train together, and what they exchange is not captured"
    if training.accumulate > 1:
        return f"training.accumulate is {training.accumulate}, and only whole batches are captured"
    if training.precision == "fp16":
        return "training.precision is fp16, whose gradient scale the host reads at each step"
    if not source.resident:
        return f"the images of {source.name} are not on the device but read as they are needed"
    return task.capture_blocker


@dataclass(frozen=True)
class Recording(Generic[Result]):
    graph: torch.cuda.CUDAGraph
    batch: Batch  # where the graph reads its input
    result: Result  # where it writes its output


class Captured(Generic[Result]):
    """`step(batch, *constants)` as CUDA graphs: one for each shape of the batch and value of the constants, in one pool of memory.

    The step reads nothing on the host, changes only the tensors of `modules` and `optimizers`, in place, and keeps no gradients.
    Move, load and prepare these before the first call: a graph knows tensors by address. The next call overwrites the result.
    """

    def __init__(
        self, step: Callable[..., Result], modules: Sequence[nn.Module], optimizers: Sequence[Optimizer]
    ) -> None:
        self.step, self.modules, self.optimizers = step, modules, optimizers
        # Warm-up and capture share a stream: gradients are accumulated on the one where their nodes were made.
        self.stream = torch.cuda.Stream()
        self.pool = torch.cuda.graph_pool_handle()
        self.recordings: dict[Hashable, Recording[Result]] = {}

    def __call__(self, batch: Batch, *constants: Hashable) -> Result:
        shapes = tuple((name, tensor.shape, tensor.dtype) for name, tensor in batch.items())
        key = (shapes, constants)
        recording = self.recordings.get(key)
        if recording is None:
            recording = self.recordings[key] = self.record(batch, constants)
        for name, tensor in batch.items():
            recording.batch[name].copy_(tensor, non_blocking=True)
        recording.graph.replay()
        return recording.result

    def record(self, batch: Batch, constants: tuple[Hashable, ...]) -> Recording[Result]:
        """Capture the step for this batch shape. Changes no state."""
        batch = {name: tensor.clone() for name, tensor in batch.items()}
        self.warm_up(batch, constants)
        graph = torch.cuda.CUDAGraph()
        gc.collect()  # a dead graph must not be freed during a capture
        try:
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                result = self.step(batch, *constants)
        except RuntimeError as error:
            reason = str(_root_cause(error)).splitlines()[0]
            raise ArcvqError(
                f"the step cannot be captured as a CUDA graph ({reason}): set training.capture to never"
            ) from error
        return Recording(graph, batch, result)

    def warm_up(self, batch: Batch, constants: tuple[Hashable, ...]) -> None:
        """Run a few steps and restore the state afterwards."""
        before = Snapshot(self.modules, self.optimizers)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(WARM_UP):
                self.step(batch, *constants)
        torch.cuda.current_stream().wait_stream(self.stream)
        before.restore()


class Snapshot:
    """A copy of all that a step changes: parameters, buffers, optimizer state, random numbers."""

    def __init__(self, modules: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        self.modules, self.optimizers = modules, optimizers
        self.values = [(tensor, tensor.detach().clone()) for tensor in _tensors(modules, optimizers)]
        self.random = random_state()

    @torch.no_grad()
    def restore(self) -> None:
        """Copy everything back, in place. Optimizer state that did not exist yet is set to zero, as an optimizer creates it."""
        kept = {id(tensor) for tensor, _ in self.values}
        for tensor, value in self.values:
            tensor.copy_(value)
        for tensor in _tensors(self.modules, self.optimizers):
            if id(tensor) not in kept:
                tensor.zero_()
        restore_random_state(self.random)


def _tensors(modules: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> Iterator[Tensor]:
    """All tensors of these modules and optimizers."""
    for module in modules:
        yield from module.parameters()
        yield from module.buffers()
    for optimizer in optimizers:
        for entries in optimizer.state.values():
            yield from (value for value in entries.values() if isinstance(value, Tensor))


def _root_cause(error: BaseException) -> BaseException:
    """The first error of a chain: behind the error of a failed capture stands that of the operation."""
    behind: Any = error.__cause__ or error.__context__
    return error if behind is None else _root_cause(behind)
