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

from arcvq.data import ImageSource, InMemoryImages
from arcvq.errors import ArcvqError
from arcvq.systems import TokenizerConfig, load_config
from arcvq.training import Trainer
from arcvq.training.launch import make_accelerator

# Number and shape of the images. Their pixels are random, because the time of a step does not depend on them.
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
MIN_EPOCHS = 3


def step_rows(
    presets: Sequence[str], device: torch.device, limit: int | None, batch_size: int | None, seconds: float
) -> Iterator[dict[str, Any]]:
    """A row per preset and way. `milliseconds` is the mean step of the median epoch, whose last batch may be smaller."""
    for preset in presets:
        for name, way in WAYS.items():
            if device.type == "cuda" or way["capture"] == "never":
                config = _step_config(preset, way, device, batch_size)
                row = {"task": "step", "name": f"{preset}, {name}", "preset": preset, "way": name, **way}
                yield row | {"batch_size": config.data.batch_size} | _measure_steps(config, limit, seconds)


def _step_config(preset: str, way: dict[str, Any], device: torch.device, batch_size: int | None) -> TokenizerConfig:
    """The preset with the settings of one way of computing."""
    settings = [f"--training.{key}={str(value).lower()}" for key, value in way.items()]
    settings += ["--training.device=cpu"] if device.type == "cpu" else []
    settings += [f"--data.batch_size={batch_size}"] if batch_size else []
    config = load_config(preset, settings)
    assert isinstance(config, TokenizerConfig)
    return config


def _measure_steps(config: TokenizerConfig, limit: int | None, seconds: float) -> dict[str, float]:
    """Time, throughput and memory of a training step, measured over whole epochs."""
    torch.compiler.reset()  # forget what earlier rows compiled
    gc.collect()
    source = ImageSource(_random_images(config.data.name, limit), config.data.batch_size)
    with tempfile.TemporaryDirectory() as folder:
        accelerator = make_accelerator(config.training)
        task = config.build(source)
        out = Path(folder) / "run"
        trainer = Trainer(task, source, source, config.training, out, quiet=True, accelerator=accelerator)
        if trainer.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        trainer.begin()
        _time_epoch(trainer)  # compiles and captures
        times: list[float] = []
        while len(times) < MIN_EPOCHS or sum(times) * source.batches_per_epoch < seconds:
            times.append(_time_epoch(trainer))
        step = statistics.median(times)
        row = {
            "milliseconds": 1e3 * step,
            "fastest": 1e3 * min(times),
            "images_per_second": source.length / source.batches_per_epoch / step,
        }
        if trainer.device.type == "cuda":
            row["mebibytes"] = torch.cuda.max_memory_allocated() / 2**20
        return row


def _time_epoch(trainer: Trainer) -> float:
    """Seconds per step over one epoch, with a synchronization only before and after the epoch."""
    wait = torch.cuda.synchronize if trainer.device.type == "cuda" else lambda: None
    trainer.position.step = 0  # a measurement may be longer than the training
    count = trainer.source.batches_per_epoch
    wait()
    began = time.perf_counter()
    for _, batch in zip(range(count), trainer.batches()):
        trainer.step(batch)
    wait()
    return (time.perf_counter() - began) / count


def _random_images(name: str, limit: int | None) -> InMemoryImages:
    """Random images in the number and shape of a data set."""
    if name not in SHAPES:
        raise ArcvqError(f"the suite steps cannot use the data set {name}: expected one of {', '.join(SHAPES)}")
    count, *shape = SHAPES[name]
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (min(count, limit or count), *shape), dtype=torch.uint8, generator=generator)
    return InMemoryImages(name, pixels)
