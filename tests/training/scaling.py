"""Trainings of five steps that one process and several must do alike.

python scaling.py FOLDER      two processes run them, then four; each writes what its trainings ended with: FOLDER/WORLD/RANK.pt
"""

from __future__ import annotations

import gc
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as multiprocessing
from torch import nn

from arcvq import distributed
from arcvq.config import merge
from arcvq.data.source import Batch
from arcvq.errors import ArcvqError, Stopped
from arcvq.storage import folder_lock
from arcvq.systems import parse_config
from arcvq.systems.train import make_trainer
from arcvq.training import Trainer

STEPS = 5
# A discriminator from the second step on, with its adaptive weight and both penalties. Batches of 8, 8, 8, 4 and 8 images.
SETTINGS: dict[str, Any] = {
    "task": "tokenizer",
    "data": {"name": "sample", "batch_size": 8, "limit": 28, "crop": 16, "flip": True},
    "autoencoder": {"kind": "small", "width": 8, "residual_width": 4, "residual_blocks": 1, "latent_dim": 8},
    "quantizer": {"kind": "vq", "codebook_size": 16},
    "objective": {"kind": "perceptual", "l1": 1.0, "l2": 0.5, "perceptual": 0.0},
    "adversarial": {
        "discriminator": {"kind": "patch", "layers": 1, "width": 8, "norm": "group", "groups": 4},
        "start": 1,
        "lecam": 0.1,
        "r1": 10.0,
        "r1_every": 2,
    },
    "training": {
        "steps": STEPS,
        "learning_rate": 1e-3,
        "gradient_clip": 1.0,
        "ema": 0.9,
        "evaluations": 0,
        "evaluation_images": 8,
        "checkpoints": 0,
        "device": "cpu",
    },
}
VQGAN: dict[str, Any] = {
    "kind": "vqgan",
    "width": 8,
    "groups": 4,
    "multipliers": [1, 2, 2],
    "blocks": 1,
    "decoder_blocks": 1,
    "attention": [],
    "latent_dim": 8,
}
SAMP: dict[str, Any] = {"metric": "cosine", "init": "unit-sphere", "ball": {"alpha": 0.01}, "arc": {"top_k": 3}}
DETERMINISTIC: dict[str, dict[str, Any]] = {
    "vq": {"kind": "vq"},
    "vq, cosine": {"kind": "vq", "metric": "cosine"},
    "vq, rotation": {"kind": "vq", "estimator": "rotation"},
    "vq, k-means": {"kind": "vq", "init": "kmeans"},
    "vq, heads": {"kind": "vq", "heads": 2, "code_dim": 3},
    "vq, unit codes": {"kind": "vq", "metric": "cosine", "init": "normal", "loss_space": "unit", "output": "unit"},
    "vq, entropy": {"kind": "vq", "entropy": {"weight": 0.3, "temperature": 0.5}},
    "arcvq": {"kind": "arcvq"},
    "arcvq, adaptive": {"kind": "arcvq", "arc": {"schedule": "adaptive", "smoothing": 0.5, "stop_gradient": False}},
    "emavq": {"kind": "emavq"},
    "emavq, samp": {"kind": "emavq", **SAMP},
    "cvq": {"kind": "cvq", "contrastive": {}},
    "cvq, samp": {"kind": "cvq", **SAMP},
    "simvq": {"kind": "simvq"},
    "simvq, samp": {"kind": "simvq", **SAMP},
    "projected": {"kind": "projected", "feature_dim": 6},
    "residual": {"kind": "residual", "depth": 3},
    "residual, arcvq": {"kind": "residual", "depth": 2, "shared": False, "codebook": {"kind": "arcvq"}},
    "grouped": {"kind": "grouped"},
    "grouped, emavq": {"kind": "grouped", "codebook": {"kind": "emavq", **SAMP}},
    "multichannel": {"kind": "multichannel", "channels": 2},
    "fsq": {"kind": "fsq"},
    "lfq": {"kind": "lfq", "entropy": {"weight": 0.3, "temperature": 0.5}},
}
# The other kinds draw in training, and each process draws for its own images, so that their result depends on the number of processes.
DRAWING: dict[str, dict[str, Any]] = {
    "hvq": {"codebook_size": 16},  # the code of each token
    "sq": {"codebook_size": 16},  # noise on the scores of the codes
    "gaussian": {"latent_dim": 4},  # a vector from each posterior
    "vmf": {"latent_dim": 4},  # a direction from each posterior
}


@dataclass(frozen=True)
class Case:
    """A training: what it changes of SETTINGS, and how one process matches it.

    double  train in float64
    alone   what the one process sets in another way
    order   of the images in the one process's batches
    """

    changes: dict[str, Any] = field(default_factory=dict)
    double: bool = True
    alone: dict[str, Any] = field(default_factory=dict)
    order: tuple[int, ...] | None = None


MICRO_BATCHES: dict[str, Any] = {"adversarial": {"adaptive": False}, "training": {"accumulate": 2}}
# Weights of shards and micro-batches are float32 numbers: 1 where all hold as many images, else rounded.
EVEN = {name: Case({"quantizer": {"codebook_size": 16, **options}}) for name, options in DETERMINISTIC.items()} | {
    "continuous start": Case({"continuous_first": 2, "quantizer": {"init": "kmeans"}, "training": {"ema": None}}),
    "vqgan": Case({"autoencoder": VQGAN, "quantizer": {"kind": "arcvq", "codebook_size": 16}}),
    "checkpointing": Case(
        {"autoencoder": {**VQGAN, "checkpointing": True}}, alone={"autoencoder": {"checkpointing": False}}
    ),
    "micro-batches": Case(MICRO_BATCHES, alone={"training": {"accumulate": 1}}),
}
# Batches of 8 images and of 1, 3 or 5: a process has fewer than another, or none.
UNEVEN = {
    "batches of one image": Case({"data": {"limit": 9}, "quantizer": {"kind": "arcvq"}, "adversarial": {"start": 0}}),
    "uneven batches": Case(
        {"data": {"limit": 11}, "quantizer": {"kind": "emavq", **SAMP}, "adversarial": {"start": 0}},
    ),
    "uneven batches, no norm": Case(
        {
            "data": {"limit": 11},
            "adversarial": {"loss": "logistic", "start": 0, "discriminator": {"norm": "none", "blur": True}},
        }
    ),
    "uneven micro-batches": Case({"data": {"limit": 13}, **MICRO_BATCHES}, alone={"training": {"accumulate": 1}}),
}
ROUNDED = {
    "bf16, checkpointing, micro-batches": Case(
        merge(MICRO_BATCHES, {"autoencoder": {**VQGAN, "checkpointing": True}, "training": {"precision": "bf16"}}),
        double=False,
    )
}
PLAIN: dict[str, Any] = {"data": {"limit": 32}, "adversarial": None}
# For two processes only.
OF_TWO = {
    # Each process divides its own images, so that the first micro-batch holds the first half of each process's.
    "arcvq, micro-batches": Case(
        {**PLAIN, "quantizer": {"kind": "arcvq"}, "training": {"accumulate": 2}}, order=(0, 1, 4, 5, 2, 3, 6, 7)
    ),
    "compiled": Case({**PLAIN, "training": {"compile": True}}, alone={"training": {"compile": False}}),
}
CASES = EVEN | UNEVEN | ROUNDED | OF_TWO


def make(case: Case, folder: Path) -> Trainer:
    """The trainer of a case, for one process or for one of several."""
    settings = merge(SETTINGS, case.changes)
    if distributed.world_size() == 1:
        settings = merge(settings, case.alone)
    trainer = make_trainer(parse_config(settings), folder, quiet=True)
    if case.double:
        for network in trainer.task.networks.values():
            network.double()
    return trainer


def train(case: Case, folder: Path) -> dict[str, Any]:
    """Train by the loop's own steps. Returns the state at the end, each step's losses and statistics, and whether the steps drew
    random numbers."""
    trainer = make(case, folder)
    trainer.begin()
    before = torch.get_rng_state()
    numbers = []
    for batch in batches(trainer, case.order if distributed.world_size() == 1 else None):
        result = trainer.step(batch)
        numbers.append({name: value.item() for name, value in {**result.terms, **result.stats}.items()})
    drew = not torch.equal(before, torch.get_rng_state())
    return {**state_of(trainer), "numbers": numbers, "drew": drew}


def batches(trainer: Trainer, order: tuple[int, ...] | None) -> Iterator[Batch]:
    """This process's part of each batch."""
    for _, batch in zip(range(STEPS), trainer.batches()):
        yield batch if order is None else {name: rows[list(order)] for name, rows in batch.items()}


def state_of(trainer: Trainer) -> dict[str, Any]:
    """All weights, buffers and averages as one row, and the name and length of each part of it."""
    modules = trainer.task.networks | {f"average of {name}": each for name, each in trainer.averages.items()}
    tensors = {f"{name}.{key}": value for name, each in modules.items() for key, value in each.state_dict().items()}
    parts = [(name, value.numel()) for name, value in tensors.items()]
    return {"parts": parts, "state": torch.cat([value.double().flatten() for value in tensors.values()])}


def run(folder: Path, changes: dict[str, Any] | None = None, stop_after: int | None = None) -> str:
    """Train from end to end, or go on; returns why it ended early, or nothing."""
    try:
        make(Case(changes or {}), folder).run(stop_after)
    except (ArcvqError, Stopped) as error:
        return str(error)
    return ""


def compile_without_inductor(module: nn.Module, **_: Any) -> None:
    """nn.Module.compile with the compiler's first half: graphs and their gradients, but no generated code."""
    module._compiled_call_impl = torch.compile(module._call_impl, dynamic=False, backend="aot_eager")


def work(rank: int, world: int, port: int, folder: Path) -> None:
    """One of several processes, with the environment that torchrun gives it."""
    processes = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    os.environ.update({name: str(value) for name, value in processes.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    cases = EVEN | UNEVEN | ROUNDED | (OF_TWO if world == 2 else {})
    results: dict[str, Any] = {name: train(case, folder / str(world) / name) for name, case in cases.items()}
    if world == 2:
        run(folder / "whole")
        run(folder / "stopped", stop_after=2)
        with folder_lock(folder / "stopped" / "lock", "training") if rank == 0 else nullcontext():
            results["locked"] = run(folder / "stopped")
    else:
        results["resumed"] = run(folder / "stopped")
        results["other settings"] = run(folder / "stopped", {"training": {"seed": 2}})
    torch.save(results, folder / str(world) / f"{rank}.pt")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    torch.set_num_threads(1)
    gc.freeze()  # Accelerate collects garbage before each training, and would walk all of torch each time
    nn.Module.compile = compile_without_inductor  # type: ignore[method-assign, assignment]
    for world in (2, 4):  # forked: torch is imported once
        arguments = (world, free_port(), Path(sys.argv[1]))
        multiprocessing.start_processes(work, arguments, nprocs=world, start_method="fork")


if __name__ == "__main__":
    main()
