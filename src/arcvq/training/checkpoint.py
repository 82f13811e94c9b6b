"""Checkpoints of our own: safetensors and JSON in a folder that appears whole or not at all."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from arcvq import distributed
from arcvq.config import parse
from arcvq.errors import ArcvqError
from arcvq.storage import atomic_folder, read_json, read_tensors, write_json, write_tensors

KEPT = 2


@dataclass
class Position:
    """How far training is. Batches are a function of seed and number, so nothing else is needed to find the next one."""

    step: int = 0  # optimizer steps done, over all stages
    seconds: float = 0.0  # of training so far
    length: int = 0  # of the training set: a run goes on with the data it began with
    best: float | None = None  # lowest value of the task's metric seen, for select: test-best


def save_checkpoint(
    root: Path,
    position: Position,
    networks: Mapping[str, nn.Module],
    averages: Mapping[str, nn.Module],
    optimizers: Mapping[str, Optimizer],
    scaler: dict[str, Any] | None,
    random_states: list[dict[str, Tensor]],
) -> Path:
    """Write a checkpoint and return its folder; older ones but the last are deleted.

    Files by network: NAME.safetensors, NAME-average.safetensors, NAME-optimizer.safetensors. `random_states`: one mapping per
    process, in rank order.
    """
    path = root / f"step-{position.step:08d}"
    plain = {}
    with atomic_folder(path) as folder:
        for name, network in networks.items():
            write_tensors(folder / f"{name}.safetensors", network.state_dict())
        for name, average in averages.items():
            write_tensors(folder / f"{name}-average.safetensors", average.state_dict())
        for name, optimizer in optimizers.items():
            tensors, plain[name] = _split_optimizer(optimizer)
            write_tensors(folder / f"{name}-optimizer.safetensors", tensors)
        for rank, states in enumerate(random_states):
            write_tensors(folder / f"random-{rank}.safetensors", states)
        write_json(folder / "state.json", {"position": asdict(position), "optimizers": plain, "scaler": scaler})
    # One of a later step could not be read when this training resumed before it.
    kept = [each for each in checkpoints(root) if each.name <= path.name][-KEPT:]
    for old in checkpoints(root):
        if old not in kept:
            shutil.rmtree(old, ignore_errors=True)
    return path


def checkpoints(root: Path) -> list[Path]:
    """The checkpoint folders, oldest first. One still being written has another name and is not among them."""
    return sorted(root.glob("step-*"))


def newest_checkpoint(root: Path, networks: Iterable[str], averages: Iterable[str]) -> tuple[Path, Position] | None:
    """The newest readable checkpoint, with a warning for each newer one. None: there are no checkpoints at all."""
    networks = list(networks)
    names = [
        *networks,
        *(f"{name}-optimizer" for name in networks),
        *(f"{name}-average" for name in averages),
        "random-0",
    ]
    unreadable: list[str] = []
    for path in reversed(checkpoints(root)):
        try:
            position = check_checkpoint(path, names)
        except ArcvqError as error:
            unreadable.append(str(error))
            continue
        for why in unreadable:
            warnings.warn(f"{why}: training goes on from {path.name} instead", stacklevel=2)
        return path, position
    if unreadable:
        raise ArcvqError(f"no checkpoint can be read: {unreadable[0]}; train again with another --out")
    return None


def check_checkpoint(path: Path, names: Iterable[str]) -> Position:
    """Read every file, these among them, before any training state changes. Returns where the training stood."""
    position = read_position(path)
    for name in sorted(
        {f"{name}.safetensors" for name in names}.union(file.name for file in path.glob("*.safetensors"))
    ):
        read_tensors(path / name, "a checkpoint")
    return position


def read_position(path: Path) -> Position:
    """The position in a checkpoint's state.json."""
    state = read_json(path / "state.json", "a checkpoint")
    try:
        position = parse(Position, state.get("position"), "position")
        if not isinstance(state.get("optimizers"), dict):
            raise ArcvqError("optimizers: expected a JSON object")
        if path.name != f"step-{position.step:08d}":
            raise ArcvqError(f"position.step: is {position.step} in the folder {path.name}")
    except ArcvqError as error:
        raise ArcvqError(f"{path / 'state.json'}: not a checkpoint's state: {error}") from None
    return position


def load_checkpoint(
    path: Path,
    networks: Mapping[str, nn.Module],
    averages: Mapping[str, nn.Module],
    optimizers: Mapping[str, Optimizer],
    rank: int,
) -> dict[str, Any] | None:
    """Fill networks, averages, optimizers and this process's random states; returns the gradient scaler's state."""
    state = read_json(path / "state.json", "a checkpoint")
    try:
        for name, network in networks.items():
            network.load_state_dict(read_tensors(path / f"{name}.safetensors", "a checkpoint"))
        for name, average in averages.items():
            average.load_state_dict(read_tensors(path / f"{name}-average.safetensors", "a checkpoint"))
        for name, optimizer in optimizers.items():
            tensors = read_tensors(path / f"{name}-optimizer.safetensors", "a checkpoint")
            _join_optimizer(optimizer, tensors, state["optimizers"][name])
    except (RuntimeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArcvqError(f"{path}: does not fit this configuration: {' '.join(str(error).split())[:200]}") from None
    # Every process looks for all files: if only those without one raised, the others would begin to train and wait for them.
    processes, saved = distributed.world_size(), len(list(path.glob("random-*.safetensors")))
    if saved < processes:
        raise ArcvqError(f"{path}: holds the random states of {saved} of {processes} processes: resume with {saved}")
    restore_random_state(read_tensors(path / f"random-{rank}.safetensors", "a checkpoint"))
    scaler: dict[str, Any] | None = state.get("scaler")
    return scaler


def random_state() -> dict[str, Tensor]:
    """The states of torch's generators, on the CPU and the current GPU."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_random_state(states: dict[str, Tensor]) -> None:
    """Set torch's random generators, of CPU and GPU, to a saved state."""
    torch.set_rng_state(states["cpu"])
    if torch.cuda.is_available() and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])


def _split_optimizer(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimizer's state as tensors by dotted name, and the rest as plain values for JSON."""
    state = optimizer.state_dict()
    tensors, plain = {}, {}
    for index, entries in state["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{name}"] = value
            else:
                plain[f"{index}.{name}"] = value
    groups = [
        {name: value.item() if isinstance(value, Tensor) else value for name, value in group.items()}
        for group in state["param_groups"]
    ]
    return tensors, {"state": plain, "param_groups": groups}


def _join_optimizer(optimizer: Optimizer, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
    """Load what `_split_optimizer` returned. Learning rate and `capturable` stay as this run has them."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in [*tensors.items(), *plain["state"].items()]:
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    own = [{name: v for name, v in group.items() if name in ("lr", "capturable")} for group in optimizer.param_groups]
    optimizer.load_state_dict({"state": state, "param_groups": plain["param_groups"]})
    for group, kept in zip(optimizer.param_groups, own):
        group.update(kept)
    for parameter, entries in optimizer.state.items():
        for name, value in entries.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                # A fused optimizer wants it laid out in memory like its parameter.
                entries[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
