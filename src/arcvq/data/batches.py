"""The batches of an epoch. Their order depends only on seed and epoch and is the same on every device."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from arcvq.data.images import Images, InMemoryImages, to_device
from arcvq.data.reading import prefetch
from arcvq.errors import ArcvqError


def batch_count(length: int, batch_size: int) -> int:
    """Number of global batches in an epoch; the last one may be smaller."""
    if batch_size < 1:
        raise ArcvqError(f"batch_size is {batch_size}; it must be at least 1")
    return -(-length // batch_size)


def epoch_order(length: int, seed: int | None, epoch: int) -> Tensor:
    """Indices of an epoch in random order, int64 (length,); without a seed 0, 1, 2, ...

    Made on the CPU, so that the order is the same on every device.
    """
    if seed is None:
        return torch.arange(length)
    if seed < 0 or epoch < 0:
        raise ArcvqError(f"seed is {seed} and epoch {epoch}; neither may be negative")
    # Hashed, not added: (seed 1, epoch 0) and (seed 0, epoch 1) must give unrelated orders.
    mixed = int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0])
    return torch.randperm(length, generator=torch.Generator().manual_seed(mixed >> 1))


def batch_indices(
    length: int,
    batch_size: int,
    *,
    seed: int | None = None,
    epoch: int = 0,
    start: int = 0,
    rank: int = 0,
    world: int = 1,
    device: torch.device | str = "cpu",
) -> Iterator[Tensor]:
    """Yield the indices, int64 (b,), of this rank's part of each global batch of an epoch, from batch `start` on.

    The parts of a batch differ by at most one image, so b may be 0 in a short last batch. Together they are the whole batch.
    """
    count = batch_count(length, batch_size)
    if not 0 <= rank < world:
        raise ArcvqError(f"rank is {rank} of {world}; it must be from 0 to {world - 1}")
    if not 0 <= start <= count:
        raise ArcvqError(f"start is {start}, but the epoch has {count} batches; it must be from 0 to {count}")
    order = to_device(epoch_order(length, seed, epoch), device)
    for batch in range(start, count):
        first = batch * batch_size
        size = min(batch_size, length - first)
        yield order[first : first + size].tensor_split(world)[rank]  # the first ranks get one more if it is uneven


def batches(
    images: Images,
    batch_size: int,
    *,
    seed: int | None = None,
    epoch: int = 0,
    start: int = 0,
    rank: int = 0,
    world: int = 1,
    device: torch.device | str | None = None,
) -> Iterator[Tensor]:
    """Yield the images of one epoch as uint8 (b, C, H, W) batches on `device` (default: the set's own), from batch `start` on.

    A set that decodes files decodes the next batch in a thread while the caller works on the current one.
    """
    resident = isinstance(images, InMemoryImages)
    parts = batch_indices(
        len(images),
        batch_size,
        seed=seed,
        epoch=epoch,
        start=start,
        rank=rank,
        world=world,
        device=images.device if isinstance(images, InMemoryImages) else "cpu",
    )
    gathered = (images.gather(part) for part in parts) if resident else prefetch(images.gather, parts)
    for batch in gathered:
        yield batch if device is None else batch.to(device, non_blocking=True)
