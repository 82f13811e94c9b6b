"""Reads result files, and averages them over seeds."""

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

# Training settings that change how a result is computed, not which.
COMPUTE_SETTINGS = ("compile", "capture", "device", "checkpoints", "log_every")
# Under which name the metrics of generated images stand beside those of the protocols.
GENERATION = "generation"


@dataclass(frozen=True)
class Result:
    """One measured run, of a tokenizer or a prior: the file of `arcvq evaluate --out`, and the log of evaluations beside it."""

    path: Path
    document: dict[str, Any]

    @property
    def data(self) -> str:
        """The name of the data set."""
        return self.path.parent.name

    @property
    def seed(self) -> int:
        return int(self.document["seed"])

    @property
    def precision(self) -> str:
        return str(self.document["config"]["training"].get("precision", "fp32"))

    @property
    def name(self) -> str:
        """The name of the run, without the precision at its end."""
        return str(self.document["name"]).removesuffix(f"-{self.precision}")

    @property
    def device(self) -> str:
        return str(self.document["training"]["device"])

    @property
    def diverged(self) -> bool:
        return "diverged" in self.document

    @property
    def makes_images(self) -> bool:
        """Whether this is the result of a prior."""
        return GENERATION in self.document

    @cached_property
    def sections(self) -> dict[str, Any]:
        """What was measured, by protocol; on a foreign set by protocol and name, e.g. `exact, SET`; of a prior by `generation`."""
        if self.makes_images:
            return {GENERATION: self.document[GENERATION]}
        own: dict[str, Any] = self.document["protocols"]
        foreign = self.document.get("foreign", {})
        return own | {f"{name}, {where}": part for where, each in foreign.items() for name, part in each.items()}

    @cached_property
    def config(self) -> dict[str, Any]:
        """The configuration; options that are newer than the result have their defaults."""
        return to_dict(parse_config(self.document["config"]))

    @cached_property
    def settings(self) -> dict[str, Any]:
        """See `decisive_settings`."""
        return decisive_settings(self.config)

    @property
    def config_hash(self) -> str:
        """The first digits of a hash of the decisive settings."""
        return hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()[:8]

    @cached_property
    def evaluations(self) -> list[dict[str, Any]]:
        """The evaluations during training, oldest first."""
        path = self.path.with_suffix(".metrics.jsonl")
        try:
            return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []
        except ValueError:
            raise ArcvqError(f"{path}: damaged: expected a JSON object in each line") from None

    @property
    def epochs(self) -> float | None:
        """Length of the training: from its last evaluation, or else from the configuration, which may have stages instead."""
        found: float | None = self.evaluations[-1]["epoch"] if self.evaluations else self.config["training"]["epochs"]
        return found

    @property
    def collapsed(self) -> bool:
        """Whether the final PSNR is less than 1 dB above that before training."""
        psnr = [each["psnr"] for each in self.evaluations if "psnr" in each]
        return not self.diverged and len(psnr) > 1 and psnr[-1] < psnr[0] + 1

    @property
    def held_out_psnr(self) -> float | None:
        """Final PSNR on the training images that were held out, if any were."""
        held_out = self.config["data"].get("holdout") and self.evaluations and not self.diverged
        return float(self.evaluations[-1]["psnr"]) if held_out else None

    def psnr_after(self, epochs: int) -> float | None:
        """Test PSNR after this many epochs, if known. With a constant learning rate, the log of a longer training has it."""
        training = self.config["training"]
        if self.epochs == epochs:
            return self.metrics("exact").get("psnr")
        exact = self.sections.get("exact")
        if exact is None or training["schedule"] != "constant" or training["evaluation_images"] < exact["images"]:
            return None
        return next((each["psnr"] for each in self.evaluations if each["epoch"] == epochs), None)

    def metrics(self, protocol: str) -> dict[str, float]:
        """The finite metrics under this protocol; empty if it was not measured."""
        measured = self.sections.get(protocol, {"metrics": {}})["metrics"]
        return {name: value for name, value in measured.items() if value is not None and math.isfinite(value)}

    def is_old_revision(self, protocol: str) -> bool:
        """Whether this was measured under an earlier revision of the protocol."""
        measured = self.sections.get(protocol)
        return measured is not None and protocol in PROTOCOLS and measured["protocol_hash"] != PROTOCOLS[protocol].hash


def decisive_settings(config: dict[str, Any]) -> dict[str, Any]:
    """The settings that decide the result of a training, without the seed."""
    config = without_paths(config)
    ignored = {"data": ("root",), "training": ("seed", *COMPUTE_SETTINGS)}
    sections = {part: {k: v for k, v in config[part].items() if k not in names} for part, names in ignored.items()}
    found: dict[str, Any] = json.loads(json.dumps({k: v for k, v in config.items() if k != "name"} | sections))
    return found


def without_paths(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with the last names of paths in place of this machine's: of a folder of images, and of a tokenizer."""
    kind, colon, path = config["data"]["name"].partition(":")
    found = config | {"data": config["data"] | {"name": f"{kind}{colon}{Path(path).name}", "root": None}}
    return found | {"tokenizer": Path(config["tokenizer"]).name} if config.get("tokenizer") else found


class Results:
    """All results of a folder, DATASET/NAME-seedN.json, grouped by run."""

    def __init__(self, folder: Path) -> None:
        """Read all results; fails if seeds of a run have different settings."""
        if not folder.is_dir():
            raise ArcvqError(f"{folder}: no such folder: expected the folder of the results (--results DIR)")
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
        # A table shows one precision: that of most runs of the data set.
        self.precision = {data: count.most_common(1)[0][0] for data, count in counts.items()}

    def get(self, data: str, name: str) -> list[Result]:
        """The results of one run, one per seed, including those that diverged."""
        return self.groups.get((data, self.precision.get(data, ""), name), [])


def read_result(path: Path) -> Result:
    """Read a result file; fails if it is none, or not named after its run."""
    result = Result(path, read_json(path, "a result"))
    try:
        named = f"{result.document['name']}-seed{result.seed}"
        data = result.document.get("data", result.config["data"]["name"])
        complete = result.diverged or all(each["metrics"] for each in result.sections.values())
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArcvqError(f"{path}: not a result of arcvq evaluate --out ({error})") from None
    if not complete:
        raise ArcvqError(f"{path}: has no metrics: measure it again")
    if path.stem != named or path.parent.name != data:  # a copy would count as one more seed
        raise ArcvqError(f"{path}: holds the result {data}/{named}: rename the file")
    return result


def check_seeds(results: Sequence[Result]) -> None:
    """Fail if results to be averaged differ in anything but the seed."""
    first = results[0]
    for other in results[1:]:
        where = first_difference(first.settings, other.settings)
        images = [{name: each["images"] for name, each in result.sections.items()} for result in (first, other)]
        if first.seed == other.seed:
            where = f"both are seed {first.seed}"
        elif any(images[0][name] != images[1][name] for name in images[0].keys() & images[1].keys()):
            where = "measured on another number of images"
        elif first.makes_images != other.makes_images and not (first.diverged or other.diverged):
            where = "one is of a tokenizer, the other of a prior"
        if where:
            raise ArcvqError(
                f"{first.path} and {other.path}: results of different settings cannot be averaged: {where}"
            )


def first_difference(one: Any, other: Any, where: str = "") -> str:
    """The first setting that differs, as text; empty if all are equal."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
        return first_difference(one.get(keys[0]), other.get(keys[0]), f"{where}.{keys[0]}".lstrip(".")) if keys else ""
    return "" if one == other else f"{where} is {json.dumps(one)} and {json.dumps(other)}"


@dataclass(frozen=True)
class Mean:
    """A mean over seeds. The spread is the sample standard deviation; None for one seed."""

    value: float
    spread: float | None
    seeds: int

    def text(self, metric: str, of: int | None = None) -> str:
        """`MEAN ± SPREAD` in the metric's format, with the number of seeds if it is not `of`."""
        label = metric_label(metric)
        text = label.text(self.value) + (f" ± {label.text(self.spread)}" if self.spread else "")
        return text if of in (None, self.seeds) else f"{text} ({self.seeds} of {of} seeds)"


def mean_of(values: Iterable[float | None]) -> Mean | None:
    """The mean of the values that are not None; None if there are none."""
    found = [value for value in values if value is not None]
    if not found:
        return None
    return Mean(statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else None, len(found))


def mean_metric(results: Iterable[Result], protocol: str, metric: str) -> Mean | None:
    """The mean of a metric over those results that have it."""
    return mean_of(result.metrics(protocol).get(metric) for result in results)
