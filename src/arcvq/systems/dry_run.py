"""What a training would take: measured on a few real steps, with nothing kept."""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from arcvq.errors import ArcvqError
from arcvq.systems.config import RunConfig
from arcvq.systems.train import make_trainer
from arcvq.training.environment import device_name

WARM_UP, MEASURED = 2, 3


@dataclass
class DryRun:
    parameters: dict[str, int]  # by network
    facts: dict[str, str]  # what else the task says of itself
    steps: int
    seconds_per_step: float
    seconds: float
    memory_bytes: int
    memory_kind: str
    device: str


def dry_run(config: RunConfig) -> DryRun:
    """Set everything up in a temporary folder, take a few steps on whole batches, and extrapolate."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(config, Path(folder) / "run", quiet=True, dry_run=True)
        trainer.begin()
        seconds = []
        for batch in trainer.batches():
            source = trainer.source
            whole = source.samples_in_batch(trainer.stage_step) == min(source.batch_size, source.length)
            began = time.perf_counter()
            trainer.step(batch)
            if trainer.device.type == "cuda":
                torch.cuda.synchronize()
            if whole:  # an epoch's last batch may be smaller
                seconds.append(time.perf_counter() - began)
            if len(seconds) == WARM_UP + MEASURED:
                break
        if not seconds:
            raise ArcvqError("nothing to time: the training has no step")
        per_step = statistics.median(seconds[WARM_UP:] or seconds)
        if trainer.device.type == "cuda":
            memory, kind = torch.cuda.max_memory_allocated(trainer.device), "GPU memory"
        else:
            unit = 1 if sys.platform == "darwin" else 1024
            memory, kind = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, "memory of the process"
        return DryRun(
            parameters={
                name: sum(p.numel() for p in each.parameters()) for name, each in trainer.task.networks.items()
            },
            facts=trainer.task.facts(trainer.source),
            steps=trainer.total_steps,
            seconds_per_step=per_step,
            seconds=per_step * trainer.total_steps,
            memory_bytes=memory,
            memory_kind=kind,
            device=device_name(trainer.device),
        )
