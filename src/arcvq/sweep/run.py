"""One run of a sweep: what it is called, where it lies, which commands make it; and which runs a table needs."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arcvq.config import nearest, override, to_dict
from arcvq.errors import ArcvqError
from arcvq.metrics import PROTOCOLS
from arcvq.storage import cannot_write, locked, read_json, write_bytes, write_json, writing
from arcvq.systems import load_system, preset_names
from arcvq.tables import EXPERIMENTS, TABLES, Experiment, Result, Table, read_result
from arcvq.training import RunFolder
from arcvq.training.environment import today

SMALL = {table.key: table for table in TABLES if isinstance(table, Table)}
STUDIES = (
    "released-code",
    "gradient",
    "tuning",
    "recipe",
    "print",
    "budgets",
    "challengers",
    "samp",
    "scaffold",
    "schedules",
    "on-top",
    "grid",
)
# Models of these are worth keeping.
KEPT = (*SMALL["table1"].runs(), *SMALL["scaffold"].runs())
# The order that is worth most soonest: a table with one seed, its ablations, then more seeds, then the rest.
ORDER: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("table1", (1,)),
    *((key, (1,)) for key in ("table4", "table6", "table11", "table12")),
    ("table1", (2, 3)),
    ("table9", (1,)),
    *((key, (1,)) for key in STUDIES),
    ("beyond", (1,)),
    *((key, (2, 3)) for key in ("scaffold", "challengers", "samp", "print")),
)
# What a quick run is measured by; the rest takes most of an evaluation's time.
QUICK = ("l1", "mse", "psnr", "ssim", "usage", "perplexity", "bits_per_image")
# How an experiment says its length.
LENGTHS = ("--training.epochs=", "--training.steps=")
PYTHON = (sys.executable, "-m", "arcvq")


@dataclass(frozen=True)
class Places:
    """Where run folders, results and kept models lie."""

    runs: Path
    results: Path
    models: Path
    keep_models: bool = False

    def locked(self) -> AbstractContextManager[None]:
        """One sweep at a time."""
        try:
            self.runs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(self.runs, error) from None
        return locked(self.runs / "lock", "sweep")


@dataclass(frozen=True)
class Run:
    data: str
    experiment: Experiment
    seed: int
    settings: tuple[str, ...] = ()
    suffix: str | None = None

    @property
    def name(self) -> str:
        return f"{self.experiment.name}-{self.suffix}" if self.suffix else self.experiment.name

    @property
    def key(self) -> str:
        return f"{self.data}/{self.name}-seed{self.seed}"

    @property
    def preset(self) -> str:
        return f"{self.data}/{self.experiment.preset}"

    @property
    def overrides(self) -> list[str]:
        """What a table is about has the last word, except that a length that was given replaces its own."""
        replaced = LENGTHS if any(map(_training(self.settings).get, ("epochs", "steps", "stages"))) else ()
        about = [word for word in self.experiment.settings if not word.startswith(replaced)]
        return [*self.settings, *about, f"--name={self.name}", f"--training.seed={self.seed}"]

    def folder(self, places: Places) -> RunFolder:
        return RunFolder(places.runs / self.key)

    def result(self, places: Places) -> Path:
        return places.results / f"{self.key}.json"

    def looks(self, places: Places) -> Path:
        """The looks along the way, kept beside the result."""
        return places.results / f"{self.key}.metrics.jsonl"

    def model(self, places: Places) -> Path:
        return places.models / self.key.replace("/", "-")

    def remeasured(self, places: Places) -> Path:
        """Where a kept model's new numbers go before they are laid over its result."""
        return places.runs / f"{self.key}.remeasured.json"

    def train_command(self, places: Places) -> list[str]:
        out = str(self.folder(places).path)
        return [*PYTHON, "train", self.preset, "--out", out, "--quiet", *self.overrides]

    def evaluate_command(self, places: Places, download: bool) -> list[str]:
        if self.state(places) == "incomplete" and not self.folder(places).training.is_file():
            words = ["evaluate", str(self.model(places)), "--data", self.data, "--out", str(self.remeasured(places))]
        else:
            words = ["evaluate", str(self.folder(places).path), "--out", str(self.result(places))]
        if self.experiment.quick:
            return [*PYTHON, *words, "--protocol", "exact", "--metrics", *QUICK]
        return [*PYTHON, *words, "--protocol", *PROTOCOLS, *["--download"] * download]

    def state(self, places: Places) -> str:
        if self.result(places).is_file():
            result = read_result(self.result(places))
            if result.diverged:
                return "diverged"
            return "done" if self.complete(result) else "incomplete"
        if self.preset not in preset_names():
            return "not in this version"
        if self.trained(places):
            return "trained"
        return "begun" if self.folder(places).config.is_file() else "to do"

    def complete(self, result: Result) -> bool:
        """It has all that its evaluation is to measure, as it is measured today."""
        protocols, metrics = (("exact",), {"psnr"}) if self.experiment.quick else (PROTOCOLS, {"lpips", "rfid"})
        found = result.document["protocols"]
        return all(p in found and metrics <= found[p]["metrics"].keys() and not result.outdated(p) for p in protocols)

    def trained(self, places: Places) -> bool:
        """There are weights to measure: the run's own or, to complete a result, the kept model's."""
        kept = self.result(places).is_file() and (self.model(places) / "config.json").is_file()
        return kept or self.folder(places).training.is_file()

    def check_folder(self, places: Places) -> None:
        """What lies in its folder is this run: the same settings, not only the same name."""
        folder = self.folder(places)
        if folder.config.is_file():
            folder.check(load_system(self.preset, self.overrides))

    def note_sharing(self, places: Places, at_a_time: int) -> None:
        """How many trainings had the device, beside the seconds that this one took."""
        file = self.folder(places).training
        write_json(file, read_json(file, "a finished run") | {"at_a_time": at_a_time})

    def lay_over(self, places: Places) -> None:
        """The kept model's new numbers into the result that tells how it was trained."""
        aside = self.remeasured(places)
        if aside.is_file():
            fresh, document = read_json(aside, "a result"), read_json(self.result(places), "a result")
            write_json(self.result(places), document | {key: fresh[key] for key in ("protocols", "measured")})
            aside.unlink()

    def note_divergence(self, places: Places, at_a_time: int) -> bool:
        """Whether the training failed so; then a result that tells it, with the looks until then, and nothing measured."""
        folder = self.folder(places)
        if not folder.diverged.is_file():
            return False
        training = read_json(folder.diverged, "a training that diverged")
        document = {
            "name": self.name,
            "data": self.data,
            "seed": self.seed,
            "protocols": {},
            "diverged": training.pop("why"),
            "config": to_dict(folder.system()),
            "training": training | {"at_a_time": at_a_time},
            "measured": {"date": today(), "device": training["device"]},
        }
        self.keep_looks(places)
        write_json(self.result(places), document)
        return True

    def keep_looks(self, places: Places) -> None:
        metrics = self.folder(places).metrics
        if metrics.is_file():
            lines = [line for line in metrics.read_text("utf-8").splitlines() if _is_look(line, metrics)]
            write_bytes(self.looks(places), "".join(f"{line}\n" for line in lines).encode())

    def keep(self, places: Places) -> None:
        """What stays of a finished training beside its result: the looks along the way and, of some, the model."""
        folder = self.folder(places)
        if not folder.metrics.is_file():
            return
        self.keep_looks(places)
        if places.keep_models and self.experiment.name in KEPT:
            with writing(self.model(places)) as aside:
                shutil.copytree(folder.model, aside, dirs_exist_ok=True)


def _is_look(line: str, file: Path) -> bool:
    try:
        return bool(json.loads(line)["kind"] == "eval")
    except (ValueError, KeyError, TypeError):
        raise ArcvqError(f"{file}: damaged: expected a JSON object in each line") from None


def choose_runs(
    table: str,
    *,
    data: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    only: Sequence[str] | None = None,
    settings: Sequence[str] = (),
    suffix: str | None = None,
) -> list[Run]:
    """The runs of a table, of the studies or of all, each once, in the order in which they are worth most."""
    known = {run for key, _ in _parts(table, seeds) for run in SMALL[key].runs()}
    sets = {preset.partition("/")[0] for preset in preset_names()}
    if not known:
        raise ArcvqError(f"{table}: nothing is chosen yet: sweep tuning and recipe, then run results/render.py")
    for name in only or ():
        if name not in known:
            raise ArcvqError(f"--only {name}: {table} has no such run{nearest(name, known)}")
    for name in data or ():
        if name not in sets:
            raise ArcvqError(f"--data {name}: there is no preset for it{nearest(name, sets)}")
    if suffix and not re.fullmatch(r"[\w.-]+", suffix):
        raise ArcvqError(f"--suffix {suffix}: becomes part of file names: letters, digits, '-', '_' and '.' only")
    _check_given(settings)
    runs = [
        Run(name, EXPERIMENTS[run], seed, tuple(settings), suffix)
        for key, wanted in _parts(table, seeds)
        for seed in wanted
        for name in data or SMALL[key].data
        for run in SMALL[key].runs()
        if not only or run in only
    ]
    return list(dict.fromkeys(runs))


def _check_given(settings: Sequence[str]) -> None:
    """Each has a value, and none is what a sweep gives its runs itself."""
    given = override({}, settings)
    data = given.get("data")
    if "name" in given:
        raise ArcvqError("--name: a sweep names its runs itself; --suffix WORD ends the names")
    if "system" in given:
        raise ArcvqError("--system: the table says which systems it is about; --only NAME chooses among its runs")
    if isinstance(data, dict) and "name" in data:
        raise ArcvqError("--data.name: a sweep gives its runs their data sets itself; --data NAME says which")
    if "seed" in _training(settings):
        raise ArcvqError("--training.seed: a sweep gives its runs their seeds itself; --seeds N says which")


def _training(settings: Sequence[str]) -> dict[str, Any]:
    """What the settings say of the training."""
    training = override({}, settings).get("training")
    return training if isinstance(training, dict) else {}


def _parts(table: str, seeds: Sequence[int] | None) -> Iterator[tuple[str, Sequence[int]]]:
    names = {each.alias: key for key, each in SMALL.items() if each.alias} | {key: key for key in SMALL}
    if table == "all":
        yield from ((key, own) for key, own in ORDER if seeds is None)
        yield from ((key, [seed]) for seed in seeds or () for key in dict.fromkeys(key for key, _ in ORDER))
    elif table == "studies":
        yield from ((key, seeds or (1,)) for key in STUDIES)
    elif table in names:
        yield names[table], seeds or SMALL[names[table]].seeds
    else:
        raise ArcvqError(f"no table {table!r} that small images can answer{nearest(table, ['all', 'studies', *names])}")
