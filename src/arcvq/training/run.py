"""The folder a training writes: made, found again, refused when it is another's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import yaml

from arcvq.config import differences, parse, read_yaml
from arcvq.errors import ArcvqError
from arcvq.storage import folder_lock, read_json, write_bytes, write_error, write_json
from arcvq.training.config import TrainingConfig


class RunFolder:
    """The paths of a run and what opens, checks and cleans them. docs/architecture.md lists the files."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.metrics = self.path / "metrics.jsonl"
        self.codebooks = self.path / "codebooks"
        self.checkpoints = self.path / "checkpoints"
        self.model = self.path / "model"
        self.tensorboard = self.path / "tensorboard"
        self.skipped = self.path / "skipped.jsonl"
        self.training = self.path / "training.json"
        self.diverged = self.path / "diverged.json"
        self.lock = self.path / "lock"

    def open(self, config: Mapping[str, Any], batches_per_epoch: int = 1) -> bool:
        """Make the folder for a training with these settings (True), or check that the one there is of it, or of a shorter one (False)."""
        if self.config.is_file():
            self.check(config, batches_per_epoch)
            return False
        try:
            if self.path.exists() and (
                not self.path.is_dir() or not all(map(self._is_partial_config, self.path.iterdir()))
            ):
                raise ArcvqError(f"{self.path}: exists and is not a run: choose another --out")
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(self.path, error) from None
        self.write_config(config)
        return True

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write config.yaml."""
        write_bytes(self.config, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True).encode())

    def check(self, config: Mapping[str, Any], batches_per_epoch: int = 1) -> None:
        """The run there was made with exactly these settings, or is finished and to be extended: then only the length differs."""
        there, here = self.read_config(), dict(config)
        difference = next(differences(_without_length(there), _without_length(here)), None)
        if difference is None and there != here:
            steps, planned = (_planned_steps(each, batches_per_epoch) for each in (there, here))
            if planned < steps:
                difference = f"{steps} steps there and {planned} here, and a run cannot be made shorter"
            elif not self.training.is_file():
                difference = (
                    f"{steps} steps there and {planned} here, and a run can be made longer only once it is finished"
                )
        if difference is not None:
            raise ArcvqError(f"{self.path}: holds a run of another configuration: {difference}; choose another --out")

    def finished_steps(self) -> int | None:
        """How many steps a finished run took; None while it is not finished."""
        if not self.training.is_file():
            return None
        steps = read_json(self.training, "a finished run").get("steps")
        if not isinstance(steps, int):
            raise ArcvqError(f"{self.training}: expected a whole number of steps, got {steps!r}")
        return steps

    def is_finished(self, config: Mapping[str, Any]) -> bool:
        """Whether a training with exactly these settings has ended here."""
        if self.finished_steps() is None or not self.config.is_file() or self.read_config() != dict(config):
            return False
        return "extended" not in read_json(self.training, "a finished run")

    def extend(self, config: Mapping[str, Any]) -> None:
        """Make a finished run the unfinished one of a longer training. training.json goes last: after a kill, this is done again."""
        write_json(self.training, {**read_json(self.training, "a finished run"), "extended": True})
        self.write_config(config)
        for file in (*self.path.glob("evaluation-*.json"), self.training):
            file.unlink()

    def read_config(self) -> dict[str, Any]:
        """What config.yaml says."""
        if not self.config.is_file():
            raise ArcvqError(f"{self.path}: not a run: config.yaml is missing")
        return read_yaml(self.config)

    def _is_partial_config(self, path: Path) -> bool:
        """Whether a kill left this of a config.yaml that was never whole: there is no run yet."""
        return path.name.startswith(f".{self.config.name}.")

    def remove(self) -> None:
        """Delete the run folder."""
        shutil.rmtree(self.path, ignore_errors=True)

    def locked(self) -> AbstractContextManager[None]:
        """One training at a time."""
        return folder_lock(self.lock, "training")

    def remove_partial_writes(self) -> None:
        """Remove what a kill left half-written: `arcvq.storage` writes under a name that begins with a dot."""
        for aside in self.path.glob(f".{self.model.name}.old.*/{self.model.name}"):
            if not self.model.exists():
                aside.rename(self.model)
        own = (
            self.config,
            self.metrics,
            self.skipped,
            self.model,
            self.training,
            self.diverged,
            self.codebooks / "step-",
            self.checkpoints / "step-",
        )
        for path in own:
            for left in path.parent.glob(f".{path.name}*"):
                shutil.rmtree(left) if left.is_dir() else left.unlink()

    def truncate_metrics(self, step: int) -> None:
        """Drop the lines of metrics.jsonl after `step`, and a line torn by a kill: the resumed run writes them again."""
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


def _without_length(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without the length of a training in one stage."""
    training = config.get("training") or {}
    if training.get("stages"):
        return dict(config)
    return {**config, "training": {key: value for key, value in training.items() if key not in ("steps", "epochs")}}


def _planned_steps(config: Mapping[str, Any], batches_per_epoch: int) -> int:
    return sum(parse(TrainingConfig, config.get("training") or {}).stage_steps(batches_per_epoch))
