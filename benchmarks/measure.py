"""Time and memory of one function, and the limits of the device."""

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

WARM_UP_RUNS, MIN_RUNS = 3, 5
MATRIX_SIDE = {"cuda": 8192, "cpu": 2048}  # side of the square matrices whose product is timed
COPY_BYTES = {"cuda": 2**30, "cpu": 2**27}  # bytes of the copy that is timed
PACKAGES = ("arcvq", "torch", "triton", "vector-quantize-pytorch", "diffusers", "faiss-cpu")


def measure_cost(function: Callable[[], object], device: torch.device, seconds: float) -> dict[str, float]:
    """`milliseconds` (median), `fastest`, and `mebibytes`: the peak memory beyond what was allocated before."""
    began = time.perf_counter()
    for _ in range(WARM_UP_RUNS):
        _time_once(function, device)
        if time.perf_counter() - began > max(1.0, seconds):
            break
    memory = measure_memory(function, device)
    times: list[float] = []
    gc.collect()
    gc.disable()  # as in timeit: a collection would distort a measurement
    try:
        end = time.perf_counter() + seconds
        while len(times) < MIN_RUNS or time.perf_counter() < end:
            times.append(_time_once(function, device))
    finally:
        gc.enable()
    return {"milliseconds": statistics.median(times), "fastest": min(times), "mebibytes": memory}


def measure_memory(function: Callable[[], object], device: torch.device) -> float:
    """Peak MiB of a call beyond what was allocated before."""
    return (_cuda_memory(function, device) if device.type == "cuda" else _cpu_memory(function)) / 2**20


@dataclass(frozen=True)
class Limits:
    """What a device can do per second: float32 operations (a multiply-add is two) and bytes (read and written)."""

    operations_per_second: float
    bytes_per_second: float

    def milliseconds(self, operations: float, moved: float) -> float:
        """The least time for this work: computing and moving overlap, so the slower of the two counts."""
        return 1e3 * max(operations / self.operations_per_second, moved / self.bytes_per_second)


def measure_limits(device: torch.device) -> Limits:
    """Measure the limits with a large float32 product and a large copy."""
    side = MATRIX_SIDE[device.type]
    a, b = torch.randn(2, side, side, device=device)
    product = torch.empty_like(a)
    source = torch.zeros(COPY_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    with ieee_matmul(a):
        product_time = measure_cost(lambda: torch.mm(a, b, out=product), device, seconds=0.5)["fastest"]
    copy_time = measure_cost(lambda: target.copy_(source), device, seconds=0.5)["fastest"]
    return Limits(1e3 * 2 * side**3 / product_time, 1e3 * 2 * source.numel() / copy_time)


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Date, device, threads and versions, for the head of every JSON file."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"
    versions = {found.name: found.version for found in distributions() if found.name in PACKAGES}
    return {"date": today(), "device": name, "threads": torch.get_num_threads(), "versions": versions}


def _time_once(function: Callable[[], object], device: torch.device) -> float:
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
    """Peak bytes that a call allocates on the GPU."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    function()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated(device) - before


def _cpu_memory(function: Callable[[], object]) -> float:
    """Peak bytes that a call allocates on the CPU, from the allocator's events."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        function()
    held = highest = 0
    changes = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(changes, key=lambda event: event.start_ns()):
        held += event.nbytes()
        highest = max(highest, held)
    return highest
