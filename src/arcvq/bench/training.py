"""A training step of whole systems, in each way the loop can play it: what the quantizer costs among everything else."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arcvq.bench.suite import machine
from arcvq.data import InMemoryImages
from arcvq.errors import ArcvqError
from arcvq.systems import System, load_system
from arcvq.training.loop import TrainingRun
from arcvq.training.step import forget_trainings

# Images of each data set: how many, and their shape. Their pixels are noise: a step's cost does not depend on them.
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


def run_steps(
    device: torch.device,
    *,
    presets: Sequence[str] | None = None,
    ways: Sequence[str] | None = None,
    limit: int | None = None,
    batch_size: int | None = None,
    seconds: float = 0.5,
    progress: Callable[[str, int, int], None] | None = None,
    save: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """One row per preset and way: milliseconds of a step, the mean over an epoch with its smaller last batch. `save` is given what
    there is after each."""
    presets = presets or PRESETS["cuda" if device.type == "cuda" else "cpu"]
    possible = [name for name, way in WAYS.items() if device.type == "cuda" or way["capture"] == "never"]
    for name in ways or ():
        if name not in possible:
            raise ArcvqError(f"--ways {name!r}: on {device.type} there are {', '.join(map(repr, possible))}")
    rows: list[dict[str, Any]] = []
    document = {**machine(device), "suite": "steps", "rows": rows}
    for preset in presets:
        for name in ways or possible:
            forget_trainings()
            system = played(preset, name, device, batch_size)
            row = {"task": "step", "name": f"{preset}, {name}", "preset": preset, "way": name, **WAYS[name]}
            rows.append({**row, "batch_size": system.data.batch_size, **_row(system, limit, seconds)})
            if save is not None:
                save(document)
            if progress is not None:
                progress("steps", len(rows), len(presets) * len(ways or possible))
    return document


def played(preset: str, way: str, device: torch.device, batch_size: int | None) -> System:
    settings = [f"--training.{key}={str(value).lower()}" for key, value in WAYS[way].items()]
    settings += ["--training.device=cpu"] if device.type == "cpu" else []
    settings += [f"--data.batch_size={batch_size}"] if batch_size else []
    return load_system(preset, settings)


def begin(system: System, limit: int | None, folder: str) -> tuple[TrainingRun, Iterator[Tensor]]:
    """A training on noise that is about to take its first step, and its batches."""
    images = noise(system.data.name, limit)
    run = TrainingRun(system, Path(folder) / "run", quiet=True, images=(images, images))
    run.start_codebook()
    run.begin_stage()
    return run, run.stage_batches()


def _row(system: System, limit: int | None, seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        run, batches = begin(system, limit, folder)
        cuda = run.accelerator.device.type == "cuda"
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        epoch(run, batches)  # compiles and records
        times: list[float] = []
        while len(times) < LEAST_EPOCHS or sum(times) * run.batches_per_epoch < seconds:
            times.append(epoch(run, batches))
        row = {
            "milliseconds": 1e3 * statistics.median(times),
            "fastest": 1e3 * min(times),
            "images_per_second": len(run.images) / run.batches_per_epoch / statistics.median(times),
            "epochs": len(times),
        }
        if cuda:
            row["mebibytes"] = torch.cuda.max_memory_allocated() / 2**20
        return row


def epoch(run: TrainingRun, batches: Iterator[Tensor]) -> float:
    """Seconds of a step, over one epoch; the device is waited for at its ends only."""
    cuda = run.accelerator.device.type == "cuda"
    run.position.stage_step = 0  # a measurement may be longer than the training
    if cuda:
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _, batch in zip(range(run.batches_per_epoch), batches):
        run.step(batch)
    if cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / run.batches_per_epoch


def noise(name: str, limit: int | None) -> InMemoryImages:
    if name not in SHAPES:
        raise ArcvqError(f"a bench of training knows the data sets {', '.join(SHAPES)}, not {name}")
    count, *shape = SHAPES[name]
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (min(count, limit or count), *shape), dtype=torch.uint8, generator=generator)
    return InMemoryImages(name, pixels)
