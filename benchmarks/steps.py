"""Training steps of whole systems: eager, as CUDA graphs, in bfloat16, compiled."""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arcvq.data import InMemoryImages
from arcvq.errors import ArcvqError
from arcvq.systems import System, load_system
from arcvq.training.loop import TrainingRun

# How many images, and their shape. Their pixels are noise: the time of a step does not depend on them.
SHAPES = {
    "sample": (10_000, 1, 28, 28),
    "mnist": (60_000, 1, 28, 28),
    "fashion-mnist": (60_000, 1, 28, 28),
    "cifar10": (50_000, 3, 32, 32),
}
PRESETS = {"cuda": ["cifar10/vq-vae-cosine", "cifar10/arcvq-vae"], "cpu": ["sample/vq-vae-cosine", "sample/arcvq-vae"]}
WAYS: dict[str, dict[str, Any]] = {
    "fp32 eager": {"precision": "fp32", "capture": "never", "compile": False},
    "fp32 captured": {"precision": "fp32", "capture": "always", "compile": False},
    "bf16 captured": {"precision": "bf16", "capture": "always", "compile": False},
    "bf16 captured compiled": {"precision": "bf16", "capture": "always", "compile": True},
}
LEAST_EPOCHS = 3


def step_rows(
    presets: Sequence[str], device: torch.device, limit: int | None, batch_size: int | None, seconds: float
) -> Iterator[dict[str, Any]]:
    """A row per preset and way. `milliseconds` is a step's mean over an epoch, with its smaller last batch."""
    for preset in presets:
        for name, way in WAYS.items():
            if device.type == "cuda" or way["capture"] == "never":
                system = _system(preset, way, device, batch_size)
                row = {"task": "step", "name": f"{preset}, {name}", "preset": preset, "way": name, **way}
                yield row | {"batch_size": system.data.batch_size} | _measured(system, limit, seconds)


def _system(preset: str, way: dict[str, Any], device: torch.device, batch_size: int | None) -> System:
    settings = [f"--training.{key}={str(value).lower()}" for key, value in way.items()]
    settings += ["--training.device=cpu"] if device.type == "cpu" else []
    settings += [f"--data.batch_size={batch_size}"] if batch_size else []
    return load_system(preset, settings)


def _measured(system: System, limit: int | None, seconds: float) -> dict[str, float]:
    torch.compiler.reset()  # nothing compiled for the row before counts
    gc.collect()
    images = _noise(system.data.name, limit)
    with tempfile.TemporaryDirectory() as folder:
        run = TrainingRun(system, Path(folder) / "run", quiet=True, images=(images, images))
        if run.accelerator.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        run.start_codebook()
        run.begin_stage()
        batches = run.stage_batches()
        _epoch(run, batches)  # compiles and captures
        times: list[float] = []
        while len(times) < LEAST_EPOCHS or sum(times) * run.batches_per_epoch < seconds:
            times.append(_epoch(run, batches))
        step = statistics.median(times)
        row = {
            "milliseconds": 1e3 * step,
            "fastest": 1e3 * min(times),
            "images_per_second": len(images) / run.batches_per_epoch / step,
        }
        if run.accelerator.device.type == "cuda":
            row["mebibytes"] = torch.cuda.max_memory_allocated() / 2**20
        return row


def _epoch(run: TrainingRun, batches: Iterator[Tensor]) -> float:
    """Seconds of a step. The device is waited for at the epoch's ends only."""
    wait = torch.cuda.synchronize if run.accelerator.device.type == "cuda" else lambda: None
    run.position.stage_step = 0  # a measurement may be longer than the training
    wait()
    began = time.perf_counter()
    for _, batch in zip(range(run.batches_per_epoch), batches):
        run.step(batch)
    wait()
    return (time.perf_counter() - began) / run.batches_per_epoch


def _noise(name: str, limit: int | None) -> InMemoryImages:
    if name not in SHAPES:
        raise ArcvqError(f"the suite steps knows the data sets {', '.join(SHAPES)}, not {name}")
    count, *shape = SHAPES[name]
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (min(count, limit or count), *shape), dtype=torch.uint8, generator=generator)
    return InMemoryImages(name, pixels)
