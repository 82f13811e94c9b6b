"""The runs of the tables: which there are, and how one is trained and measured."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arcvq.config import did_you_mean, to_dict
from arcvq.errors import ArcvqError
from arcvq.metrics import PROTOCOLS
from arcvq.storage import read_json, write_bytes, write_json
from arcvq.systems import RunConfig, load_config, measure, train
from arcvq.training import RunFolder
from arcvq.training.environment import today
from reproduction.results import decisive_settings, first_difference, read_result

RUNS_FILE = Path(__file__).with_name("runs.json")
# Metrics of quick runs: without LPIPS and FID, which take most of the time.
QUICK_METRICS = ("l1", "mse", "psnr", "ssim", "usage", "perplexity", "bits_per_image")
# Settings that the list of runs sets for each run.
RESERVED_SETTINGS = ("--name", "--system", "--data.name", "--training.seed")


@dataclass(frozen=True)
class Run:
    """One run of a table: a preset with settings, and a seed."""

    data: str
    name: str
    seed: int
    preset: str
    settings: tuple[str, ...]
    quick: bool = False

    @property
    def key(self) -> str:
        """`DATA/NAME-seedN`, the path of its result without suffix."""
        return f"{self.data}/{self.name}-seed{self.seed}"

    def config(self) -> RunConfig:
        """The configuration that trains this run."""
        own_settings = (f"--name={self.name}", f"--training.seed={self.seed}")
        return load_config(f"{self.data}/{self.preset}", [*self.settings, *own_settings])

    def result_path(self, results: Path) -> Path:
        return results / f"{self.key}.json"

    def is_measured(self, results: Path) -> bool:
        """Whether there is a result; fails if it was made with other settings."""
        path = self.result_path(results)
        if not path.is_file():
            return False
        wanted = decisive_settings(to_dict(self.config()))
        if where := first_difference(read_result(path).settings, wanted):
            raise ArcvqError(
                f"{path}: was made with other settings ({where}): name these runs differently with --suffix"
            )
        return True

    def train_and_measure(self, out: Path, results: Path, download: bool = False, limit: int | None = None) -> None:
        """Train, or resume an interrupted training, measure, and write the result. A diverged training is a result too."""
        folder = RunFolder(out / self.key)
        try:
            train(self.config(), folder.path, quiet=True)
        except ArcvqError:
            if not folder.diverged.is_file():
                raise
            document = self._diverged_document(folder)
        else:
            protocols, metrics = (["exact"], list(QUICK_METRICS)) if self.quick else (list(PROTOCOLS), None)
            document = measure(str(folder.path), protocols, metrics=metrics, limit=limit, download=download).document
        lines = folder.metrics.read_text("utf-8").splitlines(keepends=True) if folder.metrics.is_file() else []
        evaluations = "".join(line for line in lines if json.loads(line)["kind"] == "eval")
        write_bytes(results / f"{self.key}.metrics.jsonl", evaluations.encode())
        write_json(self.result_path(results), document)

    def _diverged_document(self, folder: RunFolder) -> dict[str, Any]:
        """The result of a training that diverged: without metrics, with the reason."""
        training = read_json(folder.diverged, "a training that diverged")
        return {
            "name": self.name,
            "data": self.data,
            "seed": self.seed,
            "protocols": {},
            "diverged": training.pop("why"),
            "config": folder.read_config(),
            "training": training,
            "measured": {"date": today(), "device": training["device"]},
        }


def select_runs(
    table: str,
    *,
    only: Sequence[str] = (),
    data: Sequence[str] = (),
    seeds: Sequence[int] = (),
    suffix: str = "",
    settings: Sequence[str] = (),
) -> list[Run]:
    """The runs of one table or of all, narrowed down by name, data set and seed. `settings` override those of the list."""
    document = read_json(RUNS_FILE, "the list of runs")
    tables, runs = document["tables"], document["runs"]
    keys = {name: key for key, each in tables.items() for name in (key, each.get("alias")) if name}
    if table != "all" and table not in keys:
        raise ArcvqError(f"no table {table!r}{did_you_mean(table, ['all', *keys])}")
    chosen = list(tables.values()) if table == "all" else [tables[keys[table]]]
    for word in settings:
        if word.partition("=")[0] in RESERVED_SETTINGS:
            raise ArcvqError(f"{word}: is set by the list of runs: use --only, --data, --seeds or --suffix")
    if suffix and not re.fullmatch(r"[\w.-]+", suffix):
        raise ArcvqError(
            f"--suffix {suffix}: expected only letters, digits, '-', '_' and '.', because it becomes part of file names"
        )
    known = {name for each in chosen for name in each["runs"]}
    for name in only:
        if name not in known:
            raise ArcvqError(f"--only {name}: {table} has no such run{did_you_mean(name, known)}")
    found = [
        Run(
            where,
            f"{name}-{suffix}" if suffix else name,
            seed,
            runs[name]["preset"],
            (*runs[name].get("settings", ()), *settings),
            runs[name].get("quick", False),
        )
        for each in chosen
        for seed in seeds or each["seeds"]
        for where in data or each["data"]
        for name in each["runs"]
        if not only or name in only
    ]
    return list(dict.fromkeys(found))
