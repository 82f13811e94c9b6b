"""Result files read back: grouped by name, averaged over seeds."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from arcvq.config import to_dict
from arcvq.data import data_names
from arcvq.errors import ArcvqError
from arcvq.metrics import PROTOCOLS
from arcvq.storage import read_json
from arcvq.systems import parse_system
from arcvq.tables.shapes import Shape, misfit

# Metric → heading, format, which way is better: 1 up, −1 down, 0 neither.
METRICS: dict[str, tuple[str, str, int]] = {
    "l1": ("ℓ1", ".4f", -1),
    "psnr": ("PSNR", ".2f", 1),
    "ssim": ("SSIM", ".4f", 1),
    "lpips": ("LPIPS", ".4f", -1),
    "rfid": ("rFID", ".2f", -1),
    "usage": ("usage", ".1%", 0),
    "perplexity": ("perplexity", ".0f", 0),
    "bits_per_image": ("bits/image", ".0f", 0),
    "uniformity": ("uniformity", ".2f", 0),
    "nearest_neighbour_mean": ("nearest neighbour", ".2f", 0),
    "norm_spread": ("spread of norms", ".3f", 0),
}
# How a training was computed may be part of a result's name: arcvq-vae-bf16.
PRECISIONS = ("bf16", "fp16")
# Settings that change how a training is computed and noted, not what is computed.
COMPUTING = tuple(f"training.{key}" for key in ("compile", "capture", "device", "checkpoints", "log_every"))
# How long a training, or a stage of one, goes on.
LENGTH: dict[str, Shape] = {"epochs?": "a whole number or null", "steps?": "a whole number or null"}
# What the tables and the plan of a sweep read of a result, and of a look along its training.
RESULT: Shape = {
    "name": "text",
    "seed": "a whole number",
    "data?": "text",
    "protocols": {
        "*": {
            "images": "a whole number",
            "metrics": {"*": "a number or null"},
            "missing?": {"*": "text"},
            "seconds": "a number",
        }
    },
    "diverged?": "text",
    "config": {
        "system": "text",
        "data": {"name": "text", "batch_size": "a whole number"},
        "training": {**LENGTH, "precision?": "text", "stages?": [LENGTH]},
    },
    "training": {"steps": "a whole number", "seconds": "a number", "device": "text", "at_a_time?": "a whole number"},
    "measured": {"date": "text", "device": "text"},
}
LOOK: Shape = {"epoch": "a number", "psnr": "a number", "mse?": "a number", "usage?": "a number or null"}


@dataclass(frozen=True)
class Result:
    """One measured run: the document that `arcvq evaluate --out` wrote, and the looks along the way that lie beside it."""

    data: str
    document: dict[str, Any]
    looks: tuple[dict[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """With the precision, whether the file says it or not: means are over runs that were computed alike."""
        name, precision = str(self.document["name"]), self.precision
        return name if precision not in PRECISIONS or name.endswith(f"-{precision}") else f"{name}-{precision}"

    @property
    def precision(self) -> str:
        return str(self.document["config"].get("training", {}).get("precision", "fp32"))

    @property
    def seed(self) -> int:
        return int(self.document["seed"])

    @property
    def file(self) -> str:
        return f"{self.data}/{self.document['name']}-seed{self.seed}.json"

    @property
    def settings(self) -> dict[str, Any]:
        """Every one but the seed, the name and where the data lay. An option that came later than the result counts with its
        default, so that it makes no difference where it is not used."""
        config = _resolved(self.document["config"])
        apart = {
            "data": _without(config.get("data", {}), "root"),
            "training": _without(config.get("training", {}), "seed"),
        }
        return _without(config, "name") | apart

    @property
    def config_hash(self) -> str:
        return hashlib.sha256(json.dumps(_without_null(self.settings), sort_keys=True).encode()).hexdigest()[:8]

    @property
    def epochs(self) -> float | None:
        """How long it was trained, by its last look or its settings; those of a training in stages do not say."""
        return self.looks[-1]["epoch"] if self.looks else self.document["config"].get("training", {}).get("epochs")

    @property
    def diverged(self) -> bool:
        """Nothing was measured: its numbers were no longer finite. Its looks go until then."""
        return "diverged" in self.document

    @property
    def collapsed(self) -> bool:
        """Whether its last look was as bad as that before the first step: every image comes out as one and the same."""
        if len(self.looks) < 2 or self.looks[0]["epoch"] > 0 or self.diverged:
            return False
        return bool(self.looks[-1]["psnr"] < self.looks[0]["psnr"] + 1)

    @property
    def images(self) -> dict[str, int]:
        """Protocol → on how many it was measured."""
        return {name: measured["images"] for name, measured in self.document["protocols"].items()}

    @property
    def at_a_time(self) -> int:
        """How many trainings shared the device, this one included, as far as the result tells."""
        return int(self.document["training"].get("at_a_time", 1))

    @property
    def held_out_psnr(self) -> float | None:
        """At the last look, if that was at images held out of the training set."""
        held = self.document["config"].get("data", {}).get("holdout")
        psnr = self.looks[-1]["psnr"] if held and self.looks and not self.diverged else None
        return psnr if psnr is not None and math.isfinite(psnr) else None

    def outdated(self, protocol: str) -> bool:
        """Whether it was measured before the protocol was corrected."""
        found = self.document["protocols"].get(protocol, {}).get("protocol_hash")
        return found is not None and found != PROTOCOLS[protocol].hash

    def metrics(self, protocol: str) -> dict[str, float] | None:
        """What is not a finite number is not a measurement."""
        measured = self.document["protocols"].get(protocol)
        if measured is None:
            return None
        return {
            name: value
            for name, value in measured["metrics"].items()
            if isinstance(value, (int, float)) and math.isfinite(value)
        }


@dataclass(frozen=True)
class Cell:
    """A mean over seeds; the spread is their standard deviation (n − 1), and one seed has none."""

    mean: float
    spread: float | None
    seeds: int

    @staticmethod
    def of(values: Sequence[float]) -> Cell | None:
        if not values:
            return None
        spread = statistics.stdev(values) if len(values) > 1 else None
        return Cell(statistics.fmean(values), spread, len(values))


def read_results(folder: Path) -> list[Result]:
    """Every DATASET/NAME-seedN.json, by data set, name and seed."""
    if not folder.is_dir():
        wrong = "is a file" if folder.exists() else "no such folder"
        raise ArcvqError(f"{folder}: {wrong}: expected a folder of results, DATASET/NAME-seedN.json (--results DIR)")
    found = [read_result(path) for path in sorted(folder.glob("*/*-seed*.json"))]
    return sorted(found, key=lambda result: (result.data, result.name, result.seed))


def read_result(path: Path) -> Result:
    """One of them, with its looks. What lies in it has the shape that is counted on from here on."""
    document = read_json(path, "a result")
    wrong = misfit(document, RESULT) or _wrong_protocols(document)
    if wrong:
        raise ArcvqError(f"{path}: not a result of arcvq evaluate: {wrong}; measure it again, or take it away")
    named = f"{document['name']}-seed{document['seed']}"
    if path.stem != named:  # or a copy would count as one more seed
        raise ArcvqError(f"{path}: tells of {named}: expected it in {named}.json")
    data = document.get("data", document["config"]["data"]["name"])  # measured on it, or, in early files, trained
    if data in data_names() and path.parent.name != data:  # its numbers would stand among those of other images
        raise ArcvqError(f"{path}: tells of {data}: expected it in a folder of that name")
    return Result(path.parent.name, document, read_looks(path.with_suffix(".metrics.jsonl")))


def _wrong_protocols(document: Mapping[str, Any]) -> str | None:
    if "diverged" in document:
        return "it diverged, and yet has protocols" if document["protocols"] else None
    return None if document["protocols"] else "protocols is empty"


def read_looks(path: Path) -> tuple[dict[str, Any], ...]:
    """The lines of NAME-seedN.metrics.jsonl; none where there is no such file."""
    if not path.is_file():
        return ()
    try:
        looks = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    except (ValueError, RecursionError):
        wrong: str | None = "expected a JSON object in each line"
    else:
        wrong = next((f"line {i}: {found}" for i, look in enumerate(looks, 1) if (found := misfit(look, LOOK))), None)
    if wrong:
        raise ArcvqError(f"{path}: not a file of looks along a training: {wrong}")
    return tuple(looks)


def group(results: Iterable[Result]) -> dict[str, dict[str, list[Result]]]:
    """data set → name → results, in order of seed; means may be taken over those of one name."""
    found: dict[str, dict[str, list[Result]]] = {}
    for result in results:
        found.setdefault(result.data, {}).setdefault(result.name, []).append(result)
    for named in found.values():
        for seeds in named.values():
            _check_seeds(seeds)
    return found


def _check_seeds(results: Sequence[Result]) -> None:
    """That they differ in their seed, and in nothing else that decides what comes of a training."""
    for one, other in pairwise(results):
        differing = difference(one, other)
        if one.seed == other.seed:
            differing = f"both are seed {one.seed}"
        if differing:
            raise ArcvqError(f"{one.file} and {other.file}: no two seeds of one run, {one.name}: {differing}")
    for protocol in dict.fromkeys(name for result in results for name in result.images):
        counts = {result.images[protocol]: result.file for result in results if protocol in result.images}
        if len(counts) > 1:
            (few, one_file), *_, (many, other_file) = sorted(counts.items())
            raise ArcvqError(
                f"{one_file} and {other_file}: measured under {protocol} on {few:,} and on {many:,} images: no mean is taken over these"
            )


def difference(one: Result, other: Result) -> str | None:
    """The first of what decides what comes of a training, but for the seed, in words."""
    return next(_differences(one.settings, other.settings), None)


def _differences(one: Any, other: Any, where: str = "") -> Iterator[str]:
    """Of settings that both have, in words; how a training was computed is no difference."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one:
            name = f"{where}.{key}" if where else key
            if key in other and name not in COMPUTING:
                yield from _differences(one[key], other[key], name)
    elif one != other:
        yield f"{where} is {json.dumps(one)} and {json.dumps(other)}"


def alike(named: Mapping[str, list[Result]], runs: Iterable[str], *, diverged: bool = False) -> dict[str, list[Result]]:
    """Results of runs that are compared with one another, by run and all in one precision: that which most of them have, or that
    with the most seeds. Those that diverged only if asked for."""
    wanted = list(runs)
    ends = ("", *(f"-{precision}" for precision in PRECISIONS))
    found = max(
        ({run: named[run + end] for run in wanted if run + end in named} for end in ends),
        key=lambda found: (len(found), sum(len(results) for results in found.values())),
    )
    kept = {run: [result for result in results if diverged or not result.diverged] for run, results in found.items()}
    return {run: results for run, results in kept.items() if results}


def of_run(named: Mapping[str, list[Result]], run: str) -> list[Result]:
    """A run's results, in the precision that has the most seeds."""
    return alike(named, [run]).get(run, [])


def collapsed(results: Iterable[Result]) -> bool:
    """All of them did."""
    found = [result.collapsed for result in results]
    return bool(found) and all(found)


def fate(results: Sequence[Result]) -> str:
    """In a word, where no number tells it: diverged or collapsed."""
    if results and all(result.diverged for result in results):
        return "diverged"
    return "collapsed" if collapsed(results) else ""


def sound(results: Iterable[Result]) -> int:
    """How many came to an end that a number tells."""
    return sum(not (result.diverged or result.collapsed) for result in results)


def failures(results: Sequence[Result]) -> str:
    """`1 of 3 collapsed`: said beside the number of the others, or of all."""
    counts = {"diverged": sum(r.diverged for r in results), "collapsed": sum(r.collapsed for r in results)}
    return ", ".join(f"{count} of {len(results)} {word}" for word, count in counts.items() if count)


def precisions(results: Iterable[Result]) -> str:
    """In words, where runs that stand together were not all computed in fp32."""
    found = sorted({result.precision for result in results})
    return "" if found == ["fp32"] else " and ".join(found)


def precision_note(results: Iterable[Result]) -> list[str]:
    words = precisions(results)
    return ["", f"Trained in {words}."] if words else []


def revision_mark(results: Iterable[Result], protocol: str) -> str:
    """For numbers of an earlier revision of their protocol."""
    return "¹" if any(result.outdated(protocol) for result in results) else ""


def cell(results: Iterable[Result], protocol: str, metric: str) -> Cell | None:
    """Over the seeds that have this number."""
    measured = [metrics for result in results if (metrics := result.metrics(protocol)) is not None]
    return Cell.of([m[metric] for m in measured if metric in m])


def number(metric: str, value: float) -> str:
    return format(value, METRICS[metric][1])


def metric_text(metric: str, found: Cell | None, seeds: int, absent: str = "not measured") -> str:
    """`24.54 ± 0.13`; seeds that agree to the last bit have no spread to show, and fewer seeds than the row has are said."""
    if found is None:
        return absent
    text = number(metric, found.mean)
    if found.spread:
        text += f" ± {number(metric, found.spread)}"
    return text if found.seeds == seeds else f"{text} ({found.seeds} of {seeds} seeds)"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """A Markdown table; the first `left` columns are text."""
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * left + "---:|" * (len(headings) - left)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def between_markers(text: str, key: str, section: str) -> str:
    """`text` with what stands between <!-- key:begin --> and <!-- key:end --> replaced."""
    begin, end = f"<!-- {key}:begin -->", f"<!-- {key}:end -->"
    head, found, rest = text.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise ArcvqError(
            f"the markers {begin} and {end} are not both there, in this order: put them back, or take both away to begin anew"
        )
    return f"{head}{begin}\n{section}\n{end}{tail}"


def _resolved(config: dict[str, Any]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(json.dumps(to_dict(parse_system(config))))
    except ArcvqError:  # another version's, or no system's
        return config
    return found


def _without(part: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name != key}


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_null(item) for key, item in value.items() if item is not None}
    return value
