"""When a training evaluates, and how a batch is divided."""

from __future__ import annotations


def evaluation_steps(total: int, evaluations: int) -> set[int]:
    """The steps after which a training evaluates: evenly spaced, and log-spaced before, where a codebook changes most."""
    even = {round(total * i / evaluations) for i in range(1, evaluations + 1)} if evaluations else {total}
    return even | {2**i for i in range(total.bit_length()) if 2**i < min(even)}


def checkpoint_steps(total: int, checkpoints: int) -> set[int]:
    """The steps after which a checkpoint is written: evenly spaced, the last one at the end."""
    return {round(total * i / checkpoints) for i in range(1, checkpoints + 1)}


def micro_batch_weights(size: int, world: int, accumulate: int) -> tuple[float, ...]:
    """The share of a global batch of `size` samples that each micro-batch holds: the same number of them, and the same shares, on
    each of `world` processes."""
    shards = [size * (rank + 1) // world - size * rank // world for rank in range(world)]
    count = min(accumulate, max(1, min(shards)))
    return tuple(sum(shard // count + (i < shard % count) for shard in shards) / size for i in range(count))
