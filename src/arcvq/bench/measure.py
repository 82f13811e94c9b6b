"""Time and memory of one function, on whatever device its tensors live on."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

WARM_UP = 3
LEAST_RUNS = 5


@dataclass(frozen=True)
class Cost:
    """milliseconds: the median run; spread: its interquartile range; fastest: the quickest run, for a machine that is not idle;
    mebibytes: the most memory held beyond what was there before."""

    milliseconds: float
    spread: float
    fastest: float
    runs: int
    mebibytes: float


def cost(function: Callable[[], object], device: torch.device, seconds: float) -> Cost:
    """Warm up, then run for about `seconds` of wall time, at least a few runs; a slow function once is warm enough."""
    began = time.perf_counter()
    for _ in range(WARM_UP):
        function()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if time.perf_counter() - began > max(1.0, seconds):
            break
    memory = _cuda_memory(function, device) if device.type == "cuda" else _cpu_memory(function)
    times: list[float] = []
    with _without_garbage_collection():
        end = time.perf_counter() + seconds
        while len(times) < LEAST_RUNS or time.perf_counter() < end:
            times.append(_once(function, device))
    quarters = statistics.quantiles(times, n=4)
    return Cost(statistics.median(times), quarters[2] - quarters[0], min(times), len(times), memory / 2**20)


def fastest_run(function: Callable[[], object], device: torch.device, runs: int = 10) -> float:
    """Milliseconds of the fastest run: what the device can do when nothing disturbs it."""
    for _ in range(WARM_UP):
        function()
    return min(_once(function, device) for _ in range(runs))


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """As timeit does: Python's collector would run in the middle of some measurement or other."""
    gc.collect()
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def _once(function: Callable[[], object], device: torch.device) -> float:
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
    """From the allocator's own events: the highest point of what was allocated and not yet freed."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        function()
    held = highest = 0
    changes = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(changes, key=lambda event: event.start_ns()):
        held += event.nbytes()
        highest = max(highest, held)
    return highest
