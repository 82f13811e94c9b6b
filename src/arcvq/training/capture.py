"""A step recorded once as a CUDA graph and replayed ever after: the host launches one thing instead of hundreds."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from arcvq.data import Images, InMemoryImages
from arcvq.errors import ArcvqError
from arcvq.quantizers import Quantizer
from arcvq.systems import TrainingConfig
from arcvq.training.checkpoint import random_state, restore_random_state

# Runs before the recording, in which libraries choose their algorithms and compilers compile.
WARM_UP = 3

Result = TypeVar("Result")


def captures(
    training: TrainingConfig, device: torch.device, processes: int, images: Images, quantizer: Quantizer
) -> bool:
    """Whether a training's step is captured; `always` where that cannot be is an error that says why."""
    if training.capture == "never":
        return False
    found = obstacle(training, device, processes, images, quantizer)
    if found is not None and training.capture == "always":
        raise ArcvqError(f"training.capture is always, but {found}: use auto or never")
    return found is None


def obstacle(
    training: TrainingConfig, device: torch.device, processes: int, images: Images, quantizer: Quantizer
) -> str | None:
    """What keeps a step from being captured, or None."""
    if device.type != "cuda":
        return f"a CUDA graph needs a CUDA device and this training runs on {device.type}"
    if processes > 1:
        return f"{processes} processes train together, and what they exchange is not captured"
    if training.accumulate > 1:
        return f"training.accumulate is {training.accumulate}, and only whole batches are captured"
    if training.precision == "fp16":
        return "training.precision is fp16, whose gradient scale the host reads at each step"
    if not isinstance(images, InMemoryImages) or images.device.type != "cuda":
        return f"the images of {images.name} are not on the device but read as they are needed"
    if not quantizer.capturable:
        return f"{type(quantizer).__name__} reads the host in its steps"
    return None


@dataclass(frozen=True)
class Recording(Generic[Result]):
    graph: torch.cuda.CUDAGraph
    batch: Tensor  # where the graph finds its input
    result: Result  # where it leaves its output


class Captured(Generic[Result]):
    """`body(batch, *constants)` as CUDA graphs: one for each shape of the batch and value of the constants, in one pool of memory.

    The body works on the device alone and reads nothing on the host; it changes no tensors but those of `modules` and
    `optimizers`, in place, and leaves no gradients behind. These must be as they will stay (moved, loaded, prepared) before the
    first call: a graph knows tensors by address. The tensors of a result are the graph's own: read them before the next call.
    """

    def __init__(
        self, body: Callable[..., Result], modules: Sequence[nn.Module], optimizers: Sequence[Optimizer]
    ) -> None:
        self.body, self.modules, self.optimizers = body, modules, optimizers
        # Warm-up and recording share a stream: gradients are accumulated on the one where their nodes were made.
        self.stream = torch.cuda.Stream()
        self.pool = torch.cuda.graph_pool_handle()
        self.recordings: dict[Hashable, Recording[Result]] = {}

    def __call__(self, batch: Tensor, *constants: Hashable) -> Result:
        key = (batch.shape, batch.dtype, constants)
        recording = self.recordings.get(key)
        if recording is None:
            recording = self.recordings[key] = self.record(batch, constants)
        recording.batch.copy_(batch, non_blocking=True)
        recording.graph.replay()
        return recording.result

    def record(self, batch: Tensor, constants: tuple[Hashable, ...]) -> Recording[Result]:
        batch = batch.clone()
        self.warm_up(batch, constants)
        graph = torch.cuda.CUDAGraph()
        gc.collect()  # a dead graph must not be freed in the middle of a recording
        try:
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                result = self.body(batch, *constants)
        except RuntimeError as error:
            reason = str(_first(error)).splitlines()[0]
            raise ArcvqError(
                f"the step cannot be captured as a CUDA graph ({reason}): set training.capture to never"
            ) from error
        return Recording(graph, batch, result)

    def warm_up(self, batch: Tensor, constants: tuple[Hashable, ...]) -> None:
        """A few real steps, of which no trace is left."""
        before = Snapshot(self.modules, self.optimizers)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(WARM_UP):
                self.body(batch, *constants)
        torch.cuda.current_stream().wait_stream(self.stream)
        before.restore()


class Snapshot:
    """What a step changes, kept to be put back: parameters, buffers, optimizer state, random numbers."""

    def __init__(self, modules: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        self.modules, self.optimizers = modules, optimizers
        self.values = [(tensor, tensor.detach().clone()) for tensor in _tensors(modules, optimizers)]
        self.random = random_state()

    @torch.no_grad()
    def restore(self) -> None:
        """In place. State that an optimizer has made since stays, as it begins: zero."""
        kept = {id(tensor) for tensor, _ in self.values}
        for tensor, value in self.values:
            tensor.copy_(value)
        for tensor in _tensors(self.modules, self.optimizers):
            if id(tensor) not in kept:
                tensor.zero_()
        restore_random_state(self.random)


def _tensors(modules: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> Iterator[Tensor]:
    for module in modules:
        yield from module.parameters()
        yield from module.buffers()
    for optimizer in optimizers:
        for entries in optimizer.state.values():
            yield from (value for value in entries.values() if isinstance(value, Tensor))


def _first(error: BaseException) -> BaseException:
    """The error behind the errors: a failed recording also fails to end."""
    behind: Any = error.__cause__ or error.__context__
    return error if behind is None else _first(behind)
