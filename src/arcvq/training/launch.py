"""Devices, processes and precision of a training, as Accelerate finds them."""

from __future__ import annotations

import atexit
import os
import warnings

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from arcvq import distributed
from arcvq.errors import ArcvqError
from arcvq.training.config import TrainingConfig


def make_accelerator(training: TrainingConfig) -> Accelerator:
    """The Accelerator for this precision and device."""
    # A second training in one process may want another precision or, where there is but one process, another device.
    AcceleratorState._reset_state(reset_partial_state=distributed.world_size() == 1)
    precision = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}[training.precision]
    # Explicitly: otherwise processes that find no GPU would each train alone, all into one folder.
    cpu = training.device == "cpu" or not torch.accelerator.is_available()
    try:
        accelerator = Accelerator(mixed_precision=precision, cpu=cpu)
    except (ValueError, ImportError) as error:
        raise ArcvqError(f"training.precision {training.precision} does not work on this machine: {error}") from None
    if accelerator.num_processes > 1:
        atexit.register(_leave_process_group)
    if precision == "fp16" and accelerator.device.type == "cpu":  # Accelerate would train in float32 without a word
        raise ArcvqError("training.precision fp16 needs a GPU: on a CPU use fp32 or bf16")
    if accelerator.num_processes == 1 and _launcher_asked_for_several():
        warnings.warn(
            "accelerate launch was asked for several processes and started one: on a CPU it always does. "
            "Use torchrun --nproc_per_node N -m arcvq train ... instead",
            stacklevel=2,
        )
    return accelerator


def _leave_process_group() -> None:
    """Close the connections between processes before Python exits: a backend whose threads still run may abort the process."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _launcher_asked_for_several() -> bool:
    """Whether `accelerate launch --num_processes N` started this one process: it sets a main address only for N > 1."""
    return "ACCELERATE_MIXED_PRECISION" in os.environ and "MASTER_ADDR" in os.environ and "WORLD_SIZE" not in os.environ
