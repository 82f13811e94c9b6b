"""A run folder, read back: its configuration, its log, its saved codebooks, its evaluations."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from arcvq.analysis.snapshot import FloatArray, IntArray, Snapshot
from arcvq.config import read_yaml
from arcvq.errors import ArcvqError
from arcvq.storage import read_json, read_text

SNAPSHOT_NAME = re.compile(r"step-(\d+)\.safetensors")

# "Early" is the last snapshot within this share of the training: past the random start, before things have settled.
EARLY_SHARE = 0.1


@dataclass(frozen=True)
class Series:
    """One logged number against the training step."""

    steps: IntArray
    values: FloatArray

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True)
class EvaluationResult:
    """What `arcvq evaluate` measured under one protocol; a metric stands in `metrics` or, with the reason, in `missing`."""

    protocol: str
    protocol_hash: str
    metrics: Mapping[str, float]
    missing: Mapping[str, str]
    images: int | None


@dataclass(frozen=True)
class RunHistory:
    """Everything the figures need of one run."""

    name: str
    path: Path
    system: str
    config: Mapping[str, Any]
    train: tuple[Mapping[str, Any], ...]
    evaluations: tuple[Mapping[str, Any], ...]
    snapshots: tuple[Snapshot, ...]
    results: Mapping[str, EvaluationResult]  # by the protocol's name
    finished: bool = True

    @classmethod
    def load(cls, path: str | Path, *, name: str | None = None) -> "RunHistory":
        """Read a run folder. `name` is what figures call the run; the folder's own name unless given."""
        folder = Path(path)
        for needed in ("config.yaml", "metrics.jsonl"):
            if not (folder / needed).is_file():
                raise ArcvqError(f"{folder}: not a run, {needed} is missing; give a folder that `arcvq train` wrote")
        config = read_yaml(folder / "config.yaml")
        if "system" not in config:
            raise ArcvqError(f"{folder / 'config.yaml'}: the key `system` is missing")
        lines = _read_metrics(folder / "metrics.jsonl")
        return cls(
            name=name or folder.resolve().name,
            path=folder,
            system=str(config["system"]),
            config=config,
            train=tuple(line for line in lines if line["kind"] == "train"),
            evaluations=tuple(line for line in lines if line["kind"] == "eval"),
            snapshots=_find_snapshots(folder),
            results=_read_results(sorted(folder.glob("evaluation-*.json"))),
            finished=(folder / "training.json").is_file(),
        )

    def train_series(self, key: str) -> Series:
        return _series(self.train, key)

    def evaluation_series(self, key: str) -> Series:
        return _series(self.evaluations, key)

    @property
    def has_codebook(self) -> bool:
        """False for a continuous system, and for a run that is too young for a snapshot."""
        return bool(self.snapshots)

    @property
    def last_step(self) -> int:
        steps = [int(line["step"]) for line in (*self.train, *self.evaluations)]
        return max([*steps, *(snapshot.step for snapshot in self.snapshots[-1:])], default=0)

    @property
    def last_snapshot(self) -> Snapshot:
        return self.snapshots[-1]

    @property
    def early_snapshot(self) -> Snapshot:
        """The last snapshot of the first tenth of training; the start itself only where nothing else was kept."""
        trained = [snapshot for snapshot in self.snapshots if snapshot.step > 0] or self.snapshots[:1]
        early = [snapshot for snapshot in trained if snapshot.step <= EARLY_SHARE * self.last_snapshot.step]
        return (early or trained[:1])[-1]

    def ball_radius_at(self, step: int) -> float | None:
        """The logged ball radius nearest to a step; None for a run without the bound."""
        radius = self.train_series("ball_radius")
        if len(radius) == 0:
            return None
        return float(radius.values[np.abs(radius.steps - step).argmin()])


def _series(lines: Iterable[Mapping[str, Any]], key: str) -> Series:
    """The finite values of one key. What is not finite makes no curve: the diagnosis reports it."""
    points = [(line["step"], line[key]) for line in lines if is_number(line.get(key)) and math.isfinite(line[key])]
    return Series(
        np.array([step for step, _ in points], dtype=np.int64),
        np.array([value for _, value in points], dtype=np.float64),
    )


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _read_metrics(path: Path) -> list[dict[str, Any]]:
    # Only "\n" ends a line here: str.splitlines would also cut at separators that JSON allows inside a string.
    # What follows the last "\n" is a line that a running or killed training has not finished.
    *whole, unfinished = read_text(path).split("\n")
    if _is_json(unfinished):
        whole.append(unfinished)
    lines = []
    for number, text in enumerate(whole, start=1):
        if not text.strip():
            continue
        line = json.loads(text) if _is_json(text) else None
        if not isinstance(line, dict) or not isinstance(line.get("kind"), str):
            raise ArcvqError(f"{path}:{number}: expected a JSON object with the key `kind`; delete or repair this line")
        step = line.get("step")
        if not isinstance(step, int) or isinstance(step, bool) or step < 0:
            raise ArcvqError(f"{path}:{number}: expected a whole `step` of 0 or more, found {step!r}")
        lines.append(line)
    return lines


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _find_snapshots(folder: Path) -> tuple[Snapshot, ...]:
    found = [(SNAPSHOT_NAME.fullmatch(path.name), path) for path in (folder / "codebooks").glob("step-*.safetensors")]
    snapshots = [Snapshot(int(match.group(1)), path) for match, path in found if match]
    return tuple(sorted(snapshots, key=lambda snapshot: snapshot.step))


def _read_results(paths: Iterable[Path]) -> dict[str, EvaluationResult]:
    results = {}
    for path in paths:
        content = read_json(path, "an evaluation")
        metrics, missing = content.get("metrics"), content.get("missing", {})
        if not isinstance(metrics, dict) or not isinstance(missing, dict) or "protocol" not in content:
            raise ArcvqError(f"{path}: expected metrics, missing and protocol; run `arcvq evaluate` again")
        numbers = {name: float(value) for name, value in metrics.items() if is_number(value) and math.isfinite(value)}
        # A value that is no finite number is not a measurement, and must never be printed as one.
        unusable = {name: f"measured as {value}" for name, value in metrics.items() if name not in numbers}
        result = EvaluationResult(
            protocol=str(content["protocol"]),
            protocol_hash=str(content.get("protocol_hash", "")),
            metrics=numbers,
            missing={**unusable, **{str(name): str(reason) for name, reason in missing.items()}},
            images=content.get("images"),
        )
        results[result.protocol] = result
    return results
