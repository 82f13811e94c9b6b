"""Every contender at every size, one after the other in one process, and what came of it as one document."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from arcvq.bench.contenders import Contender, Missing, all_contenders
from arcvq.bench.limits import Limits, measure_limits, sheet
from arcvq.bench.measure import cost
from arcvq.errors import ArcvqError
from arcvq.training.environment import today


@dataclass(frozen=True)
class Size:
    tokens: int  # N
    codes: int  # K
    width: int  # D

    def __str__(self) -> str:
        return f"N={self.tokens:,} K={self.codes:,} D={self.width}"


# The tokens of one training batch: CIFAR-10 at batch 1,024 (D = 64), and 30 images of 32 × 32 tokens (D = 16).
SUITES: dict[str, list[Size]] = {
    "small": [Size(2048, codes, 16) for codes in (256, 1024, 4096)] + [Size(4096, 512, 64)],
    # Small sizes first: what the plain way leaves behind at the largest ones must not be in their way.
    "full": [Size(30_720, 512, 16), Size(30_720, 1024, 16), Size(65_536, 512, 64)]
    + [Size(tokens, 16_384, 16) for tokens in (4096, 30_720, 122_880)]
    + [Size(30_720, codes, 16) for codes in (4096, 65_536, 100_000, 262_144, 1_000_000)],
    "search": [Size(2048, codes, width) for width in (16, 64) for codes in (1024, 4096, 16_384, 65_536, 262_144)]
    + [Size(16_384, codes, width) for width in (16, 64) for codes in (1024, 4096, 16_384)],
}
# A suite that is about one task only.
ONLY = {"search": ["assign"]}


TASKS = ("assign", "arc", "samp", "layer")


def suite(name: str) -> list[Size]:
    if name not in SUITES:
        raise ArcvqError(f"unknown suite {name!r}: expected one of {', '.join(SUITES)}, tokens, steps, packing")
    return SUITES[name]


def run_suite(
    sizes: Sequence[Size],
    device: torch.device,
    *,
    seconds: float = 0.5,
    tasks: Sequence[str] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    save: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """One row per contender and size: its cost, or why there is none (library missing, out of memory). `save` is given what there
    is after each size."""
    for task in tasks or ():
        if task not in TASKS:
            raise ArcvqError(f"unknown task {task!r}: expected one of {', '.join(TASKS)}")
    limits = measure_limits(device)
    contenders = all_contenders(device)
    runs = [
        (size, c)
        for size in sizes
        for c in contenders
        if (tasks is None or c.task in tasks) and (c.most_codes is None or size.codes <= c.most_codes)
    ]
    rows: list[dict[str, Any]] = []
    document = {**machine(device), "limits": _limits(limits, device), "rows": rows}
    for i, (size, contender) in enumerate(runs):
        rows.append(_row(size, contender, device, seconds, limits))
        if save is not None and (i + 1 == len(runs) or runs[i + 1][0] != size):
            save(document)
        if progress is not None:
            progress("bench", i + 1, len(runs))
    return document


def machine(device: torch.device) -> dict[str, Any]:
    """When, on what and with which libraries: the head of every document."""
    return {
        "date": today(),
        "device": _device_name(device),
        "threads": torch.get_num_threads(),
        "versions": _versions(),
    }


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"


def _limits(measured: Limits, device: torch.device) -> dict[str, Any]:
    limits: dict[str, Any] = {"measured": dataclasses.asdict(measured)}
    if numbers := sheet(_device_name(device)):
        names = ("operations_per_second", "tf32_operations_per_second", "bytes_per_second")
        limits["data_sheet"] = dict(zip(names, numbers))
    return limits


def _row(size: Size, contender: Contender, device: torch.device, seconds: float, limits: Limits) -> dict[str, Any]:
    row: dict[str, Any] = {"task": contender.task, "name": contender.name, **dataclasses.asdict(size)}
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(size.tokens, size.width, generator=generator).to(device)
    codes = torch.randn(size.codes, size.width, generator=generator).to(device)
    try:
        measured = cost(contender.make(latents, codes), device, seconds)
        work = _work(size, contender.task)
        least = {"limit": limits.milliseconds(work["operations"], work["least_bytes"])}
        if numbers := sheet(_device_name(device)):
            least["sheet_limit"] = Limits(numbers[0], numbers[2]).milliseconds(work["operations"], work["least_bytes"])
        fractions = {f"{name}_fraction": value / measured.milliseconds for name, value in least.items()}
        bounds = {f"{name}_milliseconds": value for name, value in least.items()}
        return {**row, **dataclasses.asdict(measured), **work, **bounds, **fractions}
    except Missing as missing:
        return {**row, "missing": str(missing)}
    except (torch.OutOfMemoryError, MemoryError) as error:
        return {**row, "missing": f"out of memory: {str(error).splitlines()[0][:120]}"}
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        return {**row, "missing": f"out of memory: {str(error).splitlines()[0][:120]}"}
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _work(size: Size, task: str) -> dict[str, float]:
    """What the mathematics asks for, whoever does it: multiply-adds as two operations, and bytes that must move at least once.

    A product of all tokens with all codes is 2·N·K·D. The search takes one, the ArcLoss one forward and two backward (the scores
    again, and the gradient). Least bytes: latents, codes and results, once each. The ArcLoss also takes one exponential of every
    score forward and one backward: counted, and no part of the limit. A layer is counted as its search alone.
    """
    scores = 1.0 * size.tokens * size.codes
    products = {"assign": 1, "arc": 3, "samp": 4, "layer": 1}[task]
    least = 4.0 * (size.tokens + size.codes) * size.width * (2 if task != "assign" else 1) + 8.0 * size.tokens
    work = {"operations": products * 2.0 * scores * size.width, "least_bytes": least}
    return {**work, "exponentials": 2.0 * scores} if task in ("arc", "samp") else work


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("arcvq", "torch", "triton", "vector-quantize-pytorch", "diffusers", "faiss-cpu"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
