"""Reductions over processes, so that several processes compute the losses of one large batch. With one process nothing changes.

Data-parallel wrappers average gradients over W processes. So a loss of the global batch gives each process W times its part of
the gradient, and a mean over tokens is the sum over the shard, divided by the global count, times W.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from arcvq.errors import ArcvqError

T = TypeVar("T")


def world_size() -> int:
    """The number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The index of this process, from 0."""
    return dist.get_rank() if world_size() > 1 else 0


def wait_for_all(device: torch.device) -> None:
    """Wait until every process is here. Accelerate's function asks for a GPU per process even where all train on the CPU."""
    if world_size() > 1:
        dist.barrier(device_ids=None if device.type == "cpu" else [device.index or 0])


def sum_over_processes(value: Tensor) -> Tensor:
    """Sum a tensor over all processes, without gradient."""
    if world_size() == 1:
        return value
    total = value.detach().clone()
    dist.all_reduce(total)
    return total


def shard_weight(count: Tensor) -> Tensor:
    """The weight W · n_shard / n_all of a shard's mean: weighted means, averaged over processes, give the global mean."""
    if world_size() == 1:
        return torch.ones((), device=count.device)
    count = count.to(torch.float32)
    return count * world_size() / sum_over_processes(count).clamp(min=1)


def batch_weight(batch: Tensor) -> Tensor:
    """The weight of this process's mean over its samples, the rows of `batch`: averaged over processes, it is the global mean."""
    return shard_weight(torch.full((), batch.shape[0], device=batch.device))


def from_first_process(value: Tensor) -> Tensor:
    """Broadcast the first process's tensor to all processes."""
    if world_size() > 1:
        value = value.contiguous()
        dist.broadcast(value, src=0)
    return value


def on_first_process(make: Callable[[], T]) -> T:
    """Call `make` on the first process only; all processes return its result or raise its ArcvqError."""
    if world_size() == 1:
        return make()
    answer: list[Any] = [None, None]
    if rank() == 0:
        try:
            answer[0] = make()
        except ArcvqError as error:
            answer[1] = error
    dist.broadcast_object_list(answer, src=0)
    if answer[1] is not None:
        raise answer[1]
    made: T = answer[0]
    return made


class _Gather(torch.autograd.Function):
    """All-gather with gradient: (...) → (W, ...).

    All processes compute the same global value from the result. `backward` returns W times the gradient of the process's own slice,
    because the later average over processes divides by W.
    """

    @staticmethod
    def forward(ctx, value: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        parts = [torch.empty_like(value) for _ in range(world_size())]
        dist.all_gather(parts, value.contiguous())
        return torch.stack(parts)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        return grad[rank()] * world_size()


def gather(value: Tensor) -> Tensor:
    """Stack a tensor of every process in rank order: (W, ...), with gradient. Shapes must agree on all processes."""
    return _Gather.apply(value) if world_size() > 1 else value.unsqueeze(0)


def gather_rows(rows: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """Concatenate the rows (n, D) of all processes, without gradient, with a mask of the rows that are not padding.

    Shards are padded to the longest one, whose length is read on the host.
    """
    real = torch.ones(rows.shape[0], dtype=torch.bool, device=rows.device) if valid is None else valid
    length = torch.tensor(rows.shape[0], device=rows.device)
    if world_size() > 1:
        dist.all_reduce(length, op=dist.ReduceOp.MAX)
    padding = int(length) - rows.shape[0]
    rows, real = F.pad(rows.detach(), (0, 0, 0, padding)), F.pad(real.to(torch.uint8), (0, padding))
    return gather(rows).flatten(0, 1), gather(real).flatten(0, 1).bool()
