"""Reads a run folder: configuration, log, saved codebooks, evaluations."""

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

# The early snapshot is the last one within this share of the training.
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
    """What `arcvq evaluate` measured under one protocol. `missing` has the reason for each metric without a value."""

    protocol: str
    protocol_hash: str
    metrics: Mapping[str, float]
    missing: Mapping[str, str]
    images: int | None


@dataclass(frozen=True)
class RunHistory:
    """Everything that a report reads from one run folder."""

    name: str
    path: Path
    system: str
    config: Mapping[str, Any]
    train: tuple[Mapping[str, Any], ...]
    evaluations: tuple[Mapping[str, Any], ...]
    snapshots: tuple[Snapshot, ...]
    results: Mapping[str, EvaluationResult]  # by protocol
    finished: bool = True

    @classmethod
    def load(cls, path: str | Path, *, name: str | None = None) -> "RunHistory":
        """Read a run folder. `name` labels the run in figures; default: the folder's name."""
        folder = Path(path)
        for needed in ("config.yaml", "metrics.jsonl"):
            if not (folder / needed).is_file():
                raise ArcvqError(
                    f"{folder}: not a run, {needed} is missing; expected a folder that `arcvq train` wrote"
                )
        config = read_yaml(folder / "config.yaml")
        if "system" not in config:
            raise ArcvqError(f"{folder / 'config.yaml'}: the key `system` is missing")
        lines = _read_metric_lines(folder / "metrics.jsonl")
        return cls(
            name=name or folder.resolve().name,
            path=folder,
            system=str(config["system"] or config.get("name")),
            config=config,
            train=tuple(line for line in lines if line["kind"] == "train"),
            evaluations=tuple(line for line in lines if line["kind"] == "eval"),
            snapshots=_find_snapshots(folder),
            results=_read_evaluations(sorted(folder.glob("evaluation-*.json"))),
            finished=(folder / "training.json").is_file(),
        )

    def train_series(self, key: str) -> Series:
        """A value of the training log, such as `loss`, against the step."""
        return _finite_series(self.train, key)

    def evaluation_series(self, key: str) -> Series:
        """A value of the evaluations during training, such as `psnr`, against the step."""
        return _finite_series(self.evaluations, key)

    @property
    def has_codebook(self) -> bool:
        """Whether a codebook was saved; False for continuous systems and before the first snapshot."""
        return bool(self.snapshots)

    @property
    def last_step(self) -> int:
        """The last logged step."""
        steps = [int(line["step"]) for line in (*self.train, *self.evaluations)]
        return max([*steps, *(snapshot.step for snapshot in self.snapshots[-1:])], default=0)

    @property
    def last_snapshot(self) -> Snapshot:
        return self.snapshots[-1]

    @property
    def early_snapshot(self) -> Snapshot:
        """The last snapshot in the first tenth of training; if there is none, the first one after step 0."""
        trained = [snapshot for snapshot in self.snapshots if snapshot.step > 0] or self.snapshots[:1]
        early = [snapshot for snapshot in trained if snapshot.step <= EARLY_SHARE * self.last_snapshot.step]
        return (early or trained[:1])[-1]

    def ball_radius_at(self, step: int) -> float | None:
        """The logged ball radius nearest to a step; None for a run without the bound."""
        radius = self.train_series("ball_radius")
        if len(radius) == 0:
            return None
        return float(radius.values[np.abs(radius.steps - step).argmin()])


def _finite_series(lines: Iterable[Mapping[str, Any]], key: str) -> Series:
    """The finite values of `key` against the step. The diagnosis reports the others."""
    points = [(line["step"], line[key]) for line in lines if is_number(line.get(key)) and math.isfinite(line[key])]
    return Series(
        np.array([step for step, _ in points], dtype=np.int64),
        np.array([value for _, value in points], dtype=np.float64),
    )


def is_number(value: object) -> bool:
    """True for int and float, False for bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _read_metric_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl. An unfinished last line, of a running or killed training, is skipped."""
    # Not str.splitlines: it also splits at separators that JSON allows inside a string.
    *texts, unfinished = read_text(path).split("\n")
    if _is_json(unfinished):
        texts.append(unfinished)
    lines = []
    for number, text in enumerate(texts, start=1):
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
    """Whether the text parses as JSON."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _find_snapshots(folder: Path) -> tuple[Snapshot, ...]:
    """The codebook snapshots of a run, by step."""
    found = [(SNAPSHOT_NAME.fullmatch(path.name), path) for path in (folder / "codebooks").glob("step-*.safetensors")]
    snapshots = [Snapshot(int(match.group(1)), path) for match, path in found if match]
    return tuple(sorted(snapshots, key=lambda snapshot: snapshot.step))


def _read_evaluations(paths: Iterable[Path]) -> dict[str, EvaluationResult]:
    """The results of evaluation files, by protocol."""
    results = {}
    for path in paths:
        content = read_json(path, "an evaluation")
        metrics, missing = content.get("metrics"), content.get("missing", {})
        if not isinstance(metrics, dict) or not isinstance(missing, dict) or "protocol" not in content:
            raise ArcvqError(f"{path}: expected metrics, missing and protocol; run `arcvq evaluate` again")
        finite = {name: float(value) for name, value in metrics.items() if is_number(value) and math.isfinite(value)}
        # Values that are not finite are reported as missing.
        unusable = {name: f"measured as {value}" for name, value in metrics.items() if name not in finite}
        result = EvaluationResult(
            protocol=str(content["protocol"]),
            protocol_hash=str(content.get("protocol_hash", "")),
            metrics=finite,
            missing={**unusable, **{str(name): str(reason) for name, reason in missing.items()}},
            images=content.get("images"),
        )
        results[result.protocol] = result
    return results
