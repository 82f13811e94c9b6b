"""Result files read back, and means over their seeds."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from arcvq.config import to_dict
from arcvq.errors import ArcvqError
from arcvq.metrics import PROTOCOLS, metric_label
from arcvq.storage import read_json
from arcvq.systems import parse_config

# Settings that change how a training is computed, not what is computed.
COMPUTING = ("compile", "capture", "device", "checkpoints", "log_every")
PRECISIONS = ("bf16", "fp16")


@dataclass(frozen=True)
class Result:
    """One measured run: what `arcvq evaluate --out` wrote, and the evaluations during training that lie beside it."""

    path: Path
    document: dict[str, Any]

    @property
    def data(self) -> str:
        return self.path.parent.name

    @property
    def seed(self) -> int:
        return int(self.document["seed"])

    @property
    def precision(self) -> str:
        return str(self.document["config"]["training"].get("precision", "fp32"))

    @property
    def name(self) -> str:
        """Without the precision, which is said apart."""
        return str(self.document["name"]).removesuffix(f"-{self.precision}")

    @property
    def device(self) -> str:
        return str(self.document["training"]["device"])

    @property
    def diverged(self) -> bool:
        return "diverged" in self.document

    @cached_property
    def config(self) -> dict[str, Any]:
        """With a value for options that came later than the result."""
        return to_dict(parse_config(self.document["config"]))

    @cached_property
    def settings(self) -> dict[str, Any]:
        return decisive(self.config)

    @property
    def config_hash(self) -> str:
        return hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()[:8]

    @cached_property
    def evaluations(self) -> list[dict[str, Any]]:
        path = self.path.with_suffix(".metrics.jsonl")
        try:
            return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []
        except ValueError:
            raise ArcvqError(f"{path}: damaged: expected a JSON object in each line") from None

    @property
    def epochs(self) -> float | None:
        """Of a training in stages only its evaluations say it."""
        found: float | None = self.evaluations[-1]["epoch"] if self.evaluations else self.config["training"]["epochs"]
        return found

    @property
    def collapsed(self) -> bool:
        """The last evaluation is as bad as the one before the first step: all images come out the same."""
        psnr = [each["psnr"] for each in self.evaluations]
        return not self.diverged and len(psnr) > 1 and psnr[-1] < psnr[0] + 1

    @property
    def held_out_psnr(self) -> float | None:
        """PSNR on the training images that were held out, after the last step."""
        held_out = self.config["data"].get("holdout") and self.evaluations and not self.diverged
        return float(self.evaluations[-1]["psnr"]) if held_out else None

    def psnr_after(self, epochs: int) -> float | None:
        """PSNR on the test set. At a constant rate a short training is the beginning of a long one."""
        training = self.config["training"]
        if self.epochs == epochs:
            return self.metrics("exact").get("psnr")
        exact = self.document["protocols"].get("exact")
        if exact is None or training["schedule"] != "constant" or training["evaluation_images"] < exact["images"]:
            return None
        return next((each["psnr"] for each in self.evaluations if each["epoch"] == epochs), None)

    def metrics(self, protocol: str) -> dict[str, float]:
        """Empty where nothing was measured under this protocol; a number that is not finite is no measurement."""
        measured = self.document["protocols"].get(protocol, {"metrics": {}})["metrics"]
        return {name: value for name, value in measured.items() if value is not None and math.isfinite(value)}

    def first_revision(self, protocol: str) -> bool:
        """Measured before the protocol was corrected."""
        measured = self.document["protocols"].get(protocol)
        return measured is not None and measured["protocol_hash"] != PROTOCOLS[protocol].hash


def decisive(config: dict[str, Any]) -> dict[str, Any]:
    """The settings that decide what a training computes, but for its seed."""
    apart = {"data": ("root",), "training": ("seed", *COMPUTING)}
    sections = {part: {k: v for k, v in config[part].items() if k not in names} for part, names in apart.items()}
    found: dict[str, Any] = json.loads(json.dumps({k: v for k, v in config.items() if k != "name"} | sections))
    return found


class Results:
    """Every DATASET/NAME-seedN.json of a folder."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ArcvqError(f"{folder}: no such folder: expected results, DATASET/NAME-seedN.json (--results DIR)")
        self.all = [read_result(path) for path in sorted(folder.glob("*/*-seed*.json"))]
        groups: dict[tuple[str, str, str], list[Result]] = {}
        for result in self.all:
            groups.setdefault((result.data, result.precision, result.name), []).append(result)
        for seeds in groups.values():
            check_seeds(seeds)
        self.groups = groups
        counts: dict[str, Counter[str]] = {}
        for result in self.all:
            counts.setdefault(result.data, Counter())[result.precision] += 1
        # Tables never mix precisions: they show the one that most runs of a data set have.
        self.precision = {data: count.most_common(1)[0][0] for data, count in counts.items()}

    def get(self, data: str, name: str) -> list[Result]:
        """The seeds of one run, those that diverged included."""
        return self.groups.get((data, self.precision.get(data, ""), name), [])


def read_result(path: Path) -> Result:
    result = Result(path, read_json(path, "a result"))
    try:
        named = f"{result.document['name']}-seed{result.seed}"
        data = result.document.get("data", result.config["data"]["name"])
        complete = result.diverged or all(each["metrics"] for each in result.document["protocols"].values())
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArcvqError(f"{path}: not a result of arcvq evaluate --out ({error})") from None
    if not complete:
        raise ArcvqError(f"{path}: nothing was measured: measure it again")
    if path.stem != named or path.parent.name != data:  # a copy would count as one more seed
        raise ArcvqError(f"{path}: holds {data}/{named}: expected in the file of that name")
    return result


def check_seeds(results: Sequence[Result]) -> None:
    """Seeds are averaged only if nothing else differs."""
    first = results[0]
    for other in results[1:]:
        where = difference(first.settings, other.settings)
        images = [{name: each["images"] for name, each in r.document["protocols"].items()} for r in (first, other)]
        if first.seed == other.seed:
            where = f"both are seed {first.seed}"
        elif any(images[0][name] != images[1][name] for name in images[0].keys() & images[1].keys()):
            where = "measured on another number of images"
        if where:
            raise ArcvqError(f"{first.path} and {other.path}: no mean is taken over different settings: {where}")


def difference(one: Any, other: Any, where: str = "") -> str:
    """The first setting that differs, in words; empty where none does."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
        return difference(one.get(keys[0]), other.get(keys[0]), f"{where}.{keys[0]}".lstrip(".")) if keys else ""
    return "" if one == other else f"{where} is {json.dumps(one)} and {json.dumps(other)}"


@dataclass(frozen=True)
class Mean:
    """Over seeds. The spread is the sample standard deviation; one seed has none."""

    value: float
    spread: float | None
    seeds: int

    def text(self, metric: str, of: int | None = None) -> str:
        label = metric_label(metric)
        text = label.text(self.value) + (f" ± {label.text(self.spread)}" if self.spread else "")
        return text if of in (None, self.seeds) else f"{text} ({self.seeds} of {of} seeds)"


def mean_of(values: Iterable[float | None]) -> Mean | None:
    found = [value for value in values if value is not None]
    if not found:
        return None
    return Mean(statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else None, len(found))


def mean(results: Iterable[Result], protocol: str, metric: str) -> Mean | None:
    return mean_of(result.metrics(protocol).get(metric) for result in results)
