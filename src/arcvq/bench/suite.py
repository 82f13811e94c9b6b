"""Every contender at every size, one after the other in one process, and what came of it as one document."""

from __future__ import annotations

import dataclasses
import datetime
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from arcvq.bench.contenders import Contender, Missing, all_contenders
from arcvq.bench.measure import cost
from arcvq.errors import ArcvqError


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
    "full": [Size(30_720, codes, 16) for codes in (512, 1024, 4096, 16_384, 65_536, 100_000, 262_144, 1_000_000)]
    + [Size(65_536, 512, 64)]
    + [Size(tokens, 16_384, 16) for tokens in (4096, 122_880)],
}


TASKS = ("assign", "arc", "samp", "layer")


def suite(name: str) -> list[Size]:
    if name not in SUITES:
        raise ArcvqError(f"unknown suite {name!r}: expected one of {', '.join(SUITES)}")
    return SUITES[name]


def bench_device(name: str | None) -> torch.device:
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise ArcvqError(f"unknown device {name!r}: expected cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ArcvqError("no CUDA device is to be found here: use --device cpu")
    return device


def run_suite(
    sizes: Sequence[Size],
    device: torch.device,
    *,
    seconds: float = 0.5,
    tasks: Sequence[str] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """One row per contender and size: its cost, or why there is none (library missing, out of memory)."""
    for task in tasks or ():
        if task not in TASKS:
            raise ArcvqError(f"unknown task {task!r}: expected one of {', '.join(TASKS)}")
    runs = [(size, c) for size in sizes for c in all_contenders(device) if tasks is None or c.task in tasks]
    rows = []
    for i, (size, contender) in enumerate(runs):
        rows.append(_row(size, contender, device, seconds))
        if progress is not None:
            progress("bench", i + 1, len(runs))
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU",
        "threads": torch.get_num_threads(),
        "versions": _versions(),
        "rows": rows,
    }


def _row(size: Size, contender: Contender, device: torch.device, seconds: float) -> dict[str, Any]:
    row: dict[str, Any] = {"task": contender.task, "name": contender.name, **dataclasses.asdict(size)}
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(size.tokens, size.width, generator=generator).to(device)
    codes = torch.randn(size.codes, size.width, generator=generator).to(device)
    try:
        return {
            **row,
            **dataclasses.asdict(cost(contender.make(latents, codes), device, seconds)),
            **_work(size, contender.task),
        }
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
    again, and the gradient). Least bytes: latents, codes and results, once each.
    """
    product = 2.0 * size.tokens * size.codes * size.width
    products = {"assign": 1, "arc": 3, "samp": 4, "layer": 1}[task]
    least = 4.0 * (size.tokens + size.codes) * size.width * (2 if task != "assign" else 1) + 8.0 * size.tokens
    return {"operations": products * product, "least_bytes": least}


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("arcvq", "torch", "triton", "vector-quantize-pytorch", "diffusers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
