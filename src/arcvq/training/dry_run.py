"""What a training would be: measured on a few real steps, with nothing written."""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from arcvq.systems import System
from arcvq.training.environment import device_name
from arcvq.training.loop import TrainingRun

WARM_UP, MEASURED = 2, 3


@dataclass
class DryRun:
    parameters: int
    tokens_per_image: int
    steps: int
    seconds_per_step: float
    seconds: float
    memory_bytes: int
    memory_kind: str
    device: str


def dry_run(system: System) -> DryRun:
    """Set everything up in a temporary folder, take a few steps, and extrapolate from those with a whole batch."""
    with tempfile.TemporaryDirectory() as folder:
        training = TrainingRun(system, Path(folder) / "run", quiet=True)
        device = training.accelerator.device
        training.start_codebook()
        training.begin_stage()
        whole: int | None = (
            None  # images of this process in a whole batch: an epoch's last one may be smaller, and faster
        )
        seconds: list[float] = []
        for batch in training.stage_batches():
            whole = whole or len(batch)
            began = time.perf_counter()
            training.step(batch)
            if device.type == "cuda":
                torch.cuda.synchronize()
            if len(batch) == whole:
                seconds.append(time.perf_counter() - began)
            if len(seconds) == WARM_UP + MEASURED:
                break
        tokenizer = training.tokenizer
        per_step = statistics.median(seconds[WARM_UP:] or seconds)
        height, width = training.images.height, training.images.width
        if device.type == "cuda":
            memory, kind = torch.cuda.max_memory_allocated(device), "GPU memory"
        else:
            unit = 1 if sys.platform == "darwin" else 1024
            memory, kind = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, "memory of the process"
        return DryRun(
            parameters=sum(p.numel() for p in tokenizer.parameters()),
            tokens_per_image=tokenizer.tokens_per_image(height, width),
            steps=training.total_steps,
            seconds_per_step=per_step,
            seconds=per_step * training.total_steps,
            memory_bytes=memory,
            memory_kind=kind,
            device=device_name(device),
        )
