"""A run folder, read back: what was configured, what was logged, which codebooks were kept, what was measured."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from arcvq.analysis.snapshot import FloatArray, IntArray, Snapshot
from arcvq.errors import ArcvqError

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
    seconds: float | None


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

    @classmethod
    def load(cls, path: str | Path, *, name: str | None = None) -> "RunHistory":
        """Read a run folder. `name` is what figures call the run; the folder's own name unless given."""
        folder = Path(path)
        if not folder.is_dir():
            raise ArcvqError(f"{folder}: no such folder; give a run folder, as `arcvq train --out` writes it")
        for needed in ("config.yaml", "metrics.jsonl"):
            if not (folder / needed).is_file():
                raise ArcvqError(f"{folder}: not a run folder, it has no {needed}; give what `arcvq train --out` wrote")
        config = _read_config(folder / "config.yaml")
        lines = _read_metrics(folder / "metrics.jsonl")
        return cls(
            name=name or folder.resolve().name,
            path=folder,
            system=str(config["system"]),
            config=config,
            train=tuple(line for line in lines if line["kind"] == "train"),
            evaluations=tuple(line for line in lines if line["kind"] == "eval"),
            snapshots=_find_snapshots(folder, config),
            results=_read_results(sorted(folder.glob("evaluation-*.json"))),
        )

    def train_series(self, key: str) -> Series:
        return _series(self.train, key)

    def evaluation_series(self, key: str) -> Series:
        return _series(self.evaluations, key)

    def usage_series(self) -> Series:
        """Share of codes in use; snapshots fill in the early steps that the evaluation lines leave out."""
        return self._with_snapshots("usage")

    def perplexity_series(self) -> Series:
        return self._with_snapshots("perplexity")

    @property
    def last_step(self) -> int:
        steps = [int(line["step"]) for line in (*self.train, *self.evaluations)]
        return max([*steps, self.last_snapshot.step])

    @property
    def last_snapshot(self) -> Snapshot:
        return self.snapshots[-1]

    @property
    def early_snapshot(self) -> Snapshot:
        """The last snapshot of the first tenth of training; the start itself only where nothing else was kept."""
        trained = [snapshot for snapshot in self.snapshots if snapshot.step > 0]
        if not trained:
            return self.snapshots[0]
        early = [snapshot for snapshot in trained if snapshot.step <= EARLY_SHARE * self.last_snapshot.step]
        return early[-1] if early else trained[0]

    def ball_radius_at(self, step: int) -> float | None:
        """The logged ball radius nearest to a step; None for a run without the bound."""
        radius = self.train_series("ball_radius")
        if len(radius) == 0:
            return None
        return float(radius.values[np.abs(radius.steps - step).argmin()])

    def _with_snapshots(self, key: str) -> Series:
        values = {snapshot.step: float(getattr(snapshot, key)) for snapshot in self.snapshots}
        logged = self.evaluation_series(key)
        values.update(zip(logged.steps.tolist(), logged.values.tolist()))
        kept = {step: value for step, value in sorted(values.items()) if math.isfinite(value)}
        return Series(np.array(list(kept), dtype=np.int64), np.array(list(kept.values()), dtype=np.float64))


def _series(lines: Iterable[Mapping[str, Any]], key: str) -> Series:
    """The finite values of one key. What is not finite makes no curve: the diagnosis reports it."""
    points = [(line["step"], line[key]) for line in lines if is_number(line.get(key)) and math.isfinite(line[key])]
    return Series(
        np.array([step for step, _ in points], dtype=np.int64),
        np.array([value for _, value in points], dtype=np.float64),
    )


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ArcvqError(f"{path}: not readable as YAML ({' '.join(str(error).split())})") from error
    if not isinstance(config, dict) or "system" not in config:
        raise ArcvqError(f"{path}: expected a resolved config with the key `system`; train the run again or restore it")
    return config


def _read_metrics(path: Path) -> list[dict[str, Any]]:
    lines = []
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArcvqError(f"{path}: not readable as text ({error})") from error
    # Only "\n" ends a line here: str.splitlines would also cut at separators that JSON allows inside a string.
    for number, text_line in enumerate(text.split("\n"), start=1):
        if not text_line.strip():
            continue
        try:
            line = json.loads(text_line)
        except json.JSONDecodeError as error:
            raise ArcvqError(f"{path}:{number}: not a JSON object ({error.msg}); delete or repair this line") from error
        if not isinstance(line, dict) or not isinstance(line.get("kind"), str):
            raise ArcvqError(f"{path}:{number}: expected an object with the key `kind`; delete or repair this line")
        step = line.get("step")
        if not isinstance(step, int) or isinstance(step, bool) or step < 0:
            raise ArcvqError(f"{path}:{number}: expected a whole `step` of 0 or more, found {step!r}")
        lines.append(line)
    return lines


def _find_snapshots(folder: Path, config: Mapping[str, Any]) -> tuple[Snapshot, ...]:
    found = []
    for path in (folder / "codebooks").glob("step-*.safetensors"):
        match = SNAPSHOT_NAME.fullmatch(path.name)
        if match:
            found.append(Snapshot(int(match.group(1)), path))
    quantizer = config.get("quantizer")
    if isinstance(quantizer, Mapping) and quantizer.get("codebook_size") == 0:
        raise ArcvqError(
            f"{folder}: {config['system']} has no codebook, and the figures are drawn from codebooks; leave it out"
        )
    if not found:
        raise ArcvqError(
            f"{folder}: no codebook snapshots (codebooks/step-*.safetensors), and the figures are drawn from them; "
            "train the run again with snapshots on"
        )
    return tuple(sorted(found, key=lambda snapshot: snapshot.step))


def _read_results(paths: Iterable[Path]) -> dict[str, EvaluationResult]:
    results = {}
    for path in paths:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ArcvqError(f"{path}: not readable as JSON ({error}); run `arcvq evaluate` again") from error
        metrics = content.get("metrics") if isinstance(content, dict) else None
        missing = content.get("missing", {}) if isinstance(content, dict) else None
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
            seconds=content.get("seconds"),
        )
        results[result.protocol] = result
    return results
