"""The folder a training writes: made, found again, refused when it is another's."""

from __future__ import annotations

import json
import shutil
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from arcvq.config import differences, read_yaml, to_dict
from arcvq.errors import ArcvqError
from arcvq.storage import cannot_write, locked, read_json, write_bytes
from arcvq.systems import System, parse_system


class RunFolder:
    """config.yaml, metrics.jsonl, codebooks/, checkpoints/, model/, tensorboard/, training.json or, of a training that failed so,
    diverged.json, evaluation-*.json, and lock, which one training at a time holds."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.metrics = self.path / "metrics.jsonl"
        self.codebooks = self.path / "codebooks"
        self.checkpoints = self.path / "checkpoints"
        self.model = self.path / "model"
        self.tensorboard = self.path / "tensorboard"
        self.training = self.path / "training.json"
        self.diverged = self.path / "diverged.json"
        self.lock = self.path / "lock"

    def open(self, system: System, batches_per_epoch: int = 1) -> bool:
        """Make the folder for this system (True), or check that the one there is of it, or of a shorter training (False)."""
        if self.config.is_file():
            self.check(system, batches_per_epoch)
            return False
        try:
            if self.path.exists() and (
                not self.path.is_dir() or not all(map(self.left_by_a_kill, self.path.iterdir()))
            ):
                raise ArcvqError(f"{self.path}: exists and is not a run: choose another --out")
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(self.path, error) from None
        self.write_config(system)
        return True

    def write_config(self, system: System) -> None:
        text = yaml.safe_dump(_plain(to_dict(system)), sort_keys=False, allow_unicode=True)
        write_bytes(self.config, text.encode())

    def check(self, system: System, batches_per_epoch: int = 1) -> None:
        """The run there is of exactly this system, or finished and to be extended: then only the length differs."""
        there, same_length, wanted = self.system(), self.system(), system.training
        if not (there.training.stages or wanted.stages):
            training = replace(there.training, epochs=wanted.epochs, steps=wanted.steps)
            same_length = replace(there, training=training)
        difference = next(differences(to_dict(same_length), to_dict(system)), None)
        if difference is None and there != system:
            steps, planned = (sum(each.training.stage_steps(batches_per_epoch)) for each in (there, system))
            if planned < steps:
                difference = f"{steps} steps there and {planned} here, and a run cannot be made shorter"
            elif not self.training.is_file():
                difference = (
                    f"{steps} steps there and {planned} here, and a run can be made longer only once it is finished"
                )
        if difference is not None:
            raise ArcvqError(f"{self.path}: holds a run of another configuration: {difference}; choose another --out")

    def has_begun(self) -> bool:
        """Whether there is something to go on from: then the weights come from there."""
        return self.training.is_file() or any(self.checkpoints.glob("step-*"))

    def trained_steps(self) -> int | None:
        """How many steps a finished run took; None while it is not finished."""
        if not self.training.is_file():
            return None
        steps = read_json(self.training, "a finished run").get("steps")
        if not isinstance(steps, int):
            raise ArcvqError(f"{self.training}: expected a whole number of steps, got {steps!r}")
        return steps

    def extend(self, system: System) -> None:
        """Make a finished run the unfinished one of a longer training. training.json goes last: after a kill, this is done again."""
        self.write_config(system)
        for file in (*self.path.glob("evaluation-*.json"), self.training):
            file.unlink()

    def left_by_a_kill(self, path: Path) -> bool:
        """A config.yaml that was never whole: there is no run yet."""
        return path.name.startswith(f".{self.config.name}.")

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def locked(self) -> AbstractContextManager[None]:
        """One training at a time."""
        return locked(self.lock, "training")

    def system(self) -> System:
        if not self.config.is_file():
            raise ArcvqError(f"{self.path}: not a run: config.yaml is missing")
        try:
            return parse_system(read_yaml(self.config))
        except ArcvqError as error:
            raise ArcvqError(f"{self.config}: {error}") from None

    def sweep(self) -> None:
        """Remove what a kill left half-written: `arcvq.storage` writes under a name that begins with a dot."""
        for aside in self.path.glob(f".{self.model.name}.old.*/{self.model.name}"):
            if not self.model.exists():
                aside.rename(self.model)
        own = (
            self.config,
            self.metrics,
            self.model,
            self.training,
            self.diverged,
            self.codebooks / "step-",
            self.checkpoints / "step-",
        )
        for path in own:
            for left in path.parent.glob(f".{path.name}*"):
                shutil.rmtree(left) if left.is_dir() else left.unlink()

    def forget_after(self, step: int) -> None:
        """Drop what metrics.jsonl says of steps after `step`, and a line torn by a kill: the resumed run writes them again."""
        if not self.metrics.exists():
            return
        kept = []
        for line in self.metrics.read_bytes().split(b"\n"):
            try:
                kept_line = json.loads(line)["step"] <= step
            except (ValueError, TypeError, KeyError):
                continue
            if kept_line:
                kept.append(line + b"\n")
        write_bytes(self.metrics, b"".join(kept))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
