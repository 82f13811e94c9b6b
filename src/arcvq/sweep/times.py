"""How long a run takes on this device: from earlier runs, or from a few trial steps."""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from arcvq.errors import ArcvqError
from arcvq.storage import read_json, write_json
from arcvq.sweep.run import Run
from arcvq.sweep.workers import POLL, TRAINING, Worker, last_line
from arcvq.systems import load_system, preset_names
from arcvq.tables import EXPERIMENTS, PRECISIONS, Result
from arcvq.tables.shapes import Shape, misfit

# Of a training's duration, what does not grow with its length.
BEGIN = 10.0
# So many times as long as a training may another be whose duration it tells.
FARTHEST = 100
# Settings of a quantizer that are the model's size, as all of its tokenizer's are.
SIZES = ("codebook_size", "code_dim", "heads")
# What is read of times.json.
TIMES: Shape = {
    "times": [
        {
            "preset": "text",
            "how": {"kind": "text", "unit": "text", "length": "a whole number"},
            "device": "text",
            "steps": "a whole number",
            "train": "a number",
            "evaluate?": "a number or null",
            "at_a_time?": "a whole number",
        }
    ]
}


@dataclass(frozen=True)
class How:
    """What decides how long a training takes, beside its preset: trainings of one kind differ in their length alone."""

    kind: str
    unit: str
    length: int


@dataclass(frozen=True)
class Time:
    """One run's seconds. `train` is its share of the device: its duration divided by how many ran at a time."""

    preset: str
    how: How
    device: str
    steps: int
    train: float
    evaluate: float | None = None
    source: str = "a run of this sweep"
    quick: bool = False  # how it was measured
    at_a_time: int = 1


class Times:
    """What is known, best first: runs of this sweep, results on the same device, either of another length, trial steps or, where
    those are not wanted, the slowest of the presets that are most like it."""

    def __init__(
        self, file: Path, results: Sequence[Result], device: str, *, dry_runs: bool, say: Callable[[str], None]
    ) -> None:
        self.file, self.device, self.dry_runs, self.say = file, device, dry_runs, say
        self.known = _read_times(file) if file.is_file() else []
        finished = [result for result in results if not result.diverged]
        timed = [_of_result(result, preset) for result in finished if (preset := _preset(result))]
        self.trained = [entry for entry in timed if entry.device == device]
        self.measured = [result for result in finished if result.document["measured"]["device"] == device]
        self.failures: dict[tuple[str, How], str] = {}
        self.worker: Worker | None = None  # for trial steps

    def find(self, run: Run) -> Time | None:
        """Seconds of a training like this one; None if there is no telling."""
        how = _how(run)
        own = [t for t in self.known if (t.preset, t.device) == (run.preset, self.device)]
        alike = [t for t in own if t.how == how]
        if alike:
            return next((t for t in reversed(alike) if t.source == Time.source), alike[-1])
        alike = [t for t in self.trained if (t.preset, t.how) == (run.preset, how)]
        if alike:
            return min(alike, key=lambda t: t.train)  # something else may have been on the device
        stretched = _stretched([t for t in own + self.trained if t.preset == run.preset], how)
        if stretched:
            return stretched
        if self.dry_runs:
            return self.try_out(run, how)
        there = [t for t in self.known + self.trained if t.device == self.device]
        presets = dict.fromkeys(t.preset for t in there)
        fastest = {p: found for p in presets if (found := _stretched([t for t in there if t.preset == p], how))}
        likeness = {preset: _likeness(preset, run.preset) for preset in fastest}
        nearest = [t for preset, t in fastest.items() if likeness[preset] == max(likeness.values())]
        return max((replace(t, source="another preset") for t in nearest), key=lambda t: t.train, default=None)

    def evaluation(self, run: Run) -> float | None:
        """By the same data set's other evaluations on this device: the latest of this sweep, or the middle one of those that the
        results have of the last day there was any. None if nobody has measured its like here."""
        quick = run.experiment.quick
        own = [
            t.evaluate
            for t in self.known
            if t.preset.startswith(f"{run.data}/") and (t.device, t.quick) == (self.device, quick) and t.evaluate
        ]
        if own:
            return own[-1]
        days: dict[str, list[float]] = {}
        for result in self.measured:
            if result.data == run.data and (seconds := _evaluation(result, quick)):
                days.setdefault(result.document["measured"]["date"], []).append(seconds)
        return statistics.median(days[max(days)]) if days else None

    def try_out(self, run: Run, how: How) -> Time | None:
        if (run.preset, how) in self.failures:
            return None
        self.say(f"{run.key}: nobody has timed its like on this device: a few trial steps")
        began = time.perf_counter()
        code, said = self.run(["train", run.preset, "--dry-run", "--json", *run.overrides])
        wall = time.perf_counter() - began
        if code:
            self.failures[run.preset, how] = last_line(said) or "trial steps failed"
            return None
        tried = json.loads(said[said.index("{\n") :])  # after whatever a library had to say
        # The trial's own duration is what it takes to begin.
        found = Time(run.preset, how, self.device, tried["steps"], tried["seconds"] + wall, None, "trial steps")
        self.known.append(found)
        return found

    def run(self, words: list[str]) -> tuple[int, str]:
        """A command's exit code and all it printed, in a worker that the next trial uses again."""
        with tempfile.NamedTemporaryFile() as file:
            log = Path(file.name)
            if self.worker is None:
                self.worker = Worker(TRAINING, log)
            self.worker.start(words, log)
            while (code := self.worker.poll()) is None:
                time.sleep(POLL)
            if code:
                self.close()
            return code, log.read_text("utf-8", "replace")

    def close(self) -> None:
        if self.worker is not None:
            self.worker.stop()
            self.worker.wait()
            self.worker = None

    def learn(self, run: Run, steps: int, trained_in: float, at_a_time: int, evaluate: float) -> None:
        how, quick, share = _how(run), run.experiment.quick, trained_in / at_a_time
        self.known.append(Time(run.preset, how, self.device, steps, share, evaluate, quick=quick, at_a_time=at_a_time))
        self.save()

    def save(self) -> None:
        write_json(self.file, {"times": [asdict(entry) for entry in self.known]})


def _read_times(file: Path) -> list[Time]:
    """Without those of older versions, whose `how` was a sentence that left out the model's size."""
    document = read_json(file, "a sweep")
    try:
        document["times"] = [entry for entry in document["times"] if not isinstance(entry["how"], str)]
        wrong = misfit(document, TIMES)
        known = [] if wrong else [Time(**entry | {"how": How(**entry["how"])}) for entry in document["times"]]
    except (KeyError, TypeError):
        wrong = "expected a list of runs"
    if wrong:
        raise ArcvqError(f"{file}: not the times of a sweep: {wrong}; delete it, and they are taken anew")
    return known


def _how(run: Run) -> How:
    return _how_of(asdict(load_system(run.preset, run.overrides)), run.preset)


def _how_of(config: dict[str, Any], preset: str) -> How:
    training, data = config["training"], config["data"]
    parts = [f"{key} {training.get(key)}" for key in ("precision", "compile", "accumulate")]
    parts += [f"batch {data['batch_size']}", f"limit {data.get('limit')}", f"data {data['name']}"]
    parts += _resized(config, preset)
    stages = training.get("stages") or [training]
    epochs, steps = (sum(stage.get(unit) or 0 for stage in stages) for unit in ("epochs", "steps"))
    return How(", ".join(parts), *(("epochs", epochs) if epochs else ("steps", steps)))


def _resized(config: dict[str, Any], preset: str) -> list[str]:
    """Where the model is of another size than its preset's. Only that, so that one preset can stand in for another."""
    usual = _usual_sizes(preset)
    return [f"{key} {value}" for key, value in _sizes(config).items() if value != usual.get(key, value)]


@cache
def _usual_sizes(preset: str) -> dict[str, Any]:
    return _sizes(asdict(load_system(preset))) if preset in preset_names() else {}


def _sizes(config: dict[str, Any]) -> dict[str, Any]:
    """What a configuration, maybe an older version's, says of its model's size."""
    tokenizer, quantizer = config.get("tokenizer", {}), config.get("quantizer", {})
    sizes = {f"tokenizer.{key}": value for key, value in tokenizer.items()}
    return sizes | {f"quantizer.{key}": quantizer[key] for key in SIZES if key in quantizer}


def _stretched(times: list[Time], how: How) -> Time | None:
    """The time of a training of the same kind at another length, the nearest there is: of a much shorter one, little is training. The
    fastest of those, as something else may have been on the device."""
    alike = [t for t in times if (t.how.kind, t.how.unit) == (how.kind, how.unit) and _tells(t, how.length)]
    away = {length: abs(math.log(length / how.length)) for length in {t.how.length for t in alike}}
    nearest = min(away.values(), default=0.0)
    stretched = [_at_length(t, how) for t in alike if away[t.how.length] == nearest]
    return min(stretched, key=lambda t: t.train, default=None)


def _tells(time: Time, length: int) -> bool:
    """Of a shorter training any does; of a longer one, if it was more than beginning, and no trial of a few steps."""
    own = time.how.length
    return own > 0 and (own >= length or (time.train > BEGIN / time.at_a_time and own * FARTHEST >= length))


def _at_length(time: Time, how: How) -> Time:
    share = how.length / time.how.length
    begin = min(BEGIN / time.at_a_time, time.train)
    train = begin + (time.train - begin) * share
    return replace(time, how=how, steps=round(time.steps * share), train=train, source="another length")


def _likeness(preset: str, other: str) -> int:
    """2: the same system; 1: the same trunk."""
    (system, trunk), (other_system, other_trunk) = _kind(preset), _kind(other)
    return 2 if system == other_system else int(trunk == other_trunk)


@cache
def _kind(preset: str) -> tuple[str, str]:
    if preset not in preset_names():  # times that an older version took
        return "", ""
    system = load_system(preset)
    return system.system, system.tokenizer.trunk


def _of_result(result: Result, preset: str) -> Time:
    training = result.document["training"]
    how, share = _how_of(result.document["config"], preset), training["seconds"] / result.at_a_time
    return Time(preset, how, training["device"], training["steps"], share, source="results", at_a_time=result.at_a_time)


def _preset(result: Result) -> str | None:
    name = result.name.removesuffix(f"-{result.document['config']['training'].get('precision')}")
    return f"{result.data}/{EXPERIMENTS[name].preset}" if name in EXPERIMENTS else None


def _evaluation(result: Result, quick: bool) -> float | None:
    """Only where both protocols were measured whole or, for a quick run, one without the networks."""
    protocols = result.document["protocols"]
    networks = [bool({"lpips", "rfid"} & p["metrics"].keys()) for p in protocols.values()]
    alike = networks == [False] if quick else {"exact", "paper"} <= protocols.keys() and all(networks)
    return sum(p["seconds"] for p in protocols.values()) if alike else None


def check_settings(run: Run, *, again: bool = False) -> None:
    """A wrong key is told before anything starts, and so is a name that would tell of another precision than the training's, unless
    there is a result already and its weights are only measured again."""
    try:
        precision = load_system(run.preset, run.overrides).training.precision
    except ArcvqError as error:
        raise ArcvqError(f"{run.key}: {error}") from None
    if not again and run.suffix in PRECISIONS and run.suffix != precision:
        raise ArcvqError(
            f"--suffix {run.suffix}: tables take such a result for one in {run.suffix}, and {run.key} would be one in {precision}: "
            f"say --training.precision {run.suffix}, or choose another suffix"
        )
