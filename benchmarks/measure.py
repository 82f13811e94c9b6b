"""Time and memory of one function, and what the device does at best."""

from __future__ import annotations

import gc
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import distributions
from typing import Any

import torch

from arcvq.functional.precision import ieee_matmul
from arcvq.training.environment import today

WARM_UP, LEAST_RUNS = 3, 5
PRODUCT = {"cuda": 8192, "cpu": 2048}  # side of the square matrices whose product is timed
COPY = {"cuda": 2**30, "cpu": 2**27}  # bytes of the copy that is timed
PACKAGES = ("arcvq", "torch", "triton", "vector-quantize-pytorch", "diffusers", "faiss-cpu")


def cost(function: Callable[[], object], device: torch.device, seconds: float) -> dict[str, float]:
    """`milliseconds` (median), `fastest`, and `mebibytes`: the most memory held beyond what was there before."""
    began = time.perf_counter()
    for _ in range(WARM_UP):
        _once(function, device)
        if time.perf_counter() - began > max(1.0, seconds):
            break
    memory = _cuda_memory(function, device) if device.type == "cuda" else _cpu_memory(function)
    times: list[float] = []
    gc.collect()
    gc.disable()  # as in timeit: the collector would run in the middle of some measurements
    try:
        end = time.perf_counter() + seconds
        while len(times) < LEAST_RUNS or time.perf_counter() < end:
            times.append(_once(function, device))
    finally:
        gc.enable()
    return {"milliseconds": statistics.median(times), "fastest": min(times), "mebibytes": memory / 2**20}


@dataclass(frozen=True)
class Limits:
    """float32 operations (a multiply-add is two) and bytes (read and written) a second."""

    operations_per_second: float
    bytes_per_second: float

    def milliseconds(self, operations: float, moved: float) -> float:
        """The roofline: computing and moving overlap, so the slower of the two counts."""
        return 1e3 * max(operations / self.operations_per_second, moved / self.bytes_per_second)


def measure_limits(device: torch.device) -> Limits:
    """Time a large float32 product and a large copy on this device."""
    side = PRODUCT[device.type]
    a, b = torch.randn(2, side, side, device=device)
    product = torch.empty_like(a)
    source = torch.zeros(COPY[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    with ieee_matmul(a):
        product_time = cost(lambda: torch.mm(a, b, out=product), device, seconds=0.5)["fastest"]
    copy_time = cost(lambda: target.copy_(source), device, seconds=0.5)["fastest"]
    return Limits(1e3 * 2 * side**3 / product_time, 1e3 * 2 * source.numel() / copy_time)


def machine(device: torch.device) -> dict[str, Any]:
    """The head of every JSON file: the date, the device and the versions."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"
    versions = {found.name: found.version for found in distributions() if found.name in PACKAGES}
    return {"date": today(), "device": name, "threads": torch.get_num_threads(), "versions": versions}


def _once(function: Callable[[], object], device: torch.device) -> float:
    """Milliseconds of one call."""
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        function()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)
    began = time.perf_counter()
    function()
    return (time.perf_counter() - began) * 1e3


def _cuda_memory(function: Callable[[], object], device: torch.device) -> float:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    function()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated(device) - before


def _cpu_memory(function: Callable[[], object]) -> float:
    """The allocator's events, added up: the highest point of what was allocated and not yet freed."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        function()
    held = highest = 0
    changes = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(changes, key=lambda event: event.start_ns()):
        held += event.nbytes()
        highest = max(highest, held)
    return highest
