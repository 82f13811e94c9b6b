"""Every contender at every size: time, memory and share of the device's limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from benchmarks.contenders import Contender, NotInstalled, all_contenders
from benchmarks.measure import Limits, measure_cost

TASKS = ("assign", "samp", "layer")


class Size(NamedTuple):
    tokens: int  # N
    codes: int  # K
    width: int  # D


SUITES = {
    "small": [Size(2048, codes, 16) for codes in (256, 1024, 4096)] + [Size(4096, 512, 64)],
    # CIFAR-10's batch of 1,024 images (D = 64), and 30 images of 32 × 32 tokens (D = 16). The largest sizes come last, because
    # plain PyTorch fragments the memory there.
    "full": [Size(30_720, 512, 16), Size(30_720, 1024, 16), Size(65_536, 512, 64)]
    + [Size(tokens, 16_384, 16) for tokens in (4096, 30_720, 122_880)]
    + [Size(30_720, codes, 16) for codes in (4096, 65_536, 100_000, 262_144, 1_000_000)],
    "search": [Size(2048, codes, width) for width in (16, 64) for codes in (1024, 4096, 16_384, 65_536, 262_144)]
    + [Size(16_384, codes, width) for width in (16, 64) for codes in (1024, 4096, 16_384)],
}


def size_rows(
    sizes: Sequence[Size], tasks: Sequence[str], device: torch.device, limits: Limits, seconds: float
) -> Iterator[dict[str, Any]]:
    """A row per size and contender: its cost, or under `missing` why there is none."""
    contenders = [each for each in all_contenders(device) if each.task in tasks]
    for size in sizes:
        for contender in contenders:
            if contender.max_codes is None or size.codes <= contender.max_codes:
                row = {"task": contender.task, "name": contender.name, **size._asdict()}
                yield row | _measure_contender(size, contender, device, limits, seconds)


def _measure_contender(
    size: Size, contender: Contender, device: torch.device, limits: Limits, seconds: float
) -> dict[str, Any]:
    """The cost of one contender at one size, or under `missing` why there is none."""
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(size.tokens, size.width, generator=generator).to(device)
    codes = torch.randn(size.codes, size.width, generator=generator).to(device)
    try:
        row = measure_cost(contender.make(latents, codes), device, seconds)
    except NotInstalled as missing:
        return {"missing": str(missing)}
    except (MemoryError, RuntimeError) as error:  # on a CPU, torch raises a RuntimeError when memory runs out
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        return {"missing": "out of memory"}
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()
    least = limits.milliseconds(*least_work(size, contender.task))
    return row | {"limit_milliseconds": least, "limit_fraction": least / row["milliseconds"]}


def least_work(size: Size, task: str) -> tuple[float, float]:
    """The operations and bytes that a task needs at least.

    All tokens times all codes is a product of 2·N·K·D operations. The search takes one. The ArcLoss takes three: one forward
    and two backward (the scores again, and the gradient). A layer counts as its search alone. Latents, codes and results
    move once each. Exponentials are not counted.
    """
    products = {"assign": 1, "samp": 4, "layer": 1}[task]
    moved = 4.0 * (size.tokens + size.codes) * size.width * (1 if task == "assign" else 2) + 8.0 * size.tokens
    return products * 2.0 * size.tokens * size.codes * size.width, moved
