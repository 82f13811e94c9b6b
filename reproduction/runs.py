"""The runs of a table, and the loop that makes those whose result is missing."""

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
from reproduction.results import decisive, difference, read_result

RUNS = Path(__file__).with_name("runs.json")
# What a quick run is measured by: LPIPS and FID take most of an evaluation's time.
QUICK = ("l1", "mse", "psnr", "ssim", "usage", "perplexity", "bits_per_image")
# What the list of runs gives each run itself.
OWN = ("--name", "--system", "--data.name", "--training.seed")


@dataclass(frozen=True)
class Run:
    data: str
    name: str
    seed: int
    preset: str
    settings: tuple[str, ...]
    quick: bool = False

    @property
    def key(self) -> str:
        return f"{self.data}/{self.name}-seed{self.seed}"

    def config(self) -> RunConfig:
        own = (f"--name={self.name}", f"--training.seed={self.seed}")
        return load_config(f"{self.data}/{self.preset}", [*self.settings, *own])

    def result(self, results: Path) -> Path:
        return results / f"{self.key}.json"

    def done(self, results: Path) -> bool:
        """There is a result, and it is of these settings."""
        path = self.result(results)
        if not path.is_file():
            return False
        wanted = decisive(to_dict(self.config()))
        if where := difference(read_result(path).settings, wanted):
            raise ArcvqError(
                f"{path}: a result of other settings ({where}): give these runs another name with --suffix"
            )
        return True

    def make(self, out: Path, results: Path, download: bool = False, limit: int | None = None) -> None:
        """Train, or go on where a training was interrupted, and measure. A training that diverges is a result."""
        folder = RunFolder(out / self.key)
        try:
            train(self.config(), folder.path, quiet=True)
        except ArcvqError:
            if not folder.diverged.is_file():
                raise
            document = self._diverged(folder)
        else:
            protocols, metrics = (["exact"], list(QUICK)) if self.quick else (list(PROTOCOLS), None)
            document = measure(str(folder.path), protocols, metrics=metrics, limit=limit, download=download).document
        lines = folder.metrics.read_text("utf-8").splitlines(keepends=True) if folder.metrics.is_file() else []
        kept = "".join(line for line in lines if json.loads(line)["kind"] == "eval")
        write_bytes(results / f"{self.key}.metrics.jsonl", kept.encode())
        write_json(self.result(results), document)

    def _diverged(self, folder: RunFolder) -> dict[str, Any]:
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


def choose(
    table: str,
    *,
    only: Sequence[str] = (),
    data: Sequence[str] = (),
    seeds: Sequence[int] = (),
    suffix: str = "",
    settings: Sequence[str] = (),
) -> list[Run]:
    """The runs of one table, or of all; settings given here have the last word."""
    document = read_json(RUNS, "the list of runs")
    tables, runs = document["tables"], document["runs"]
    keys = {name: key for key, each in tables.items() for name in (key, each.get("alias")) if name}
    if table != "all" and table not in keys:
        raise ArcvqError(f"no table {table!r}{did_you_mean(table, ['all', *keys])}")
    chosen = list(tables.values()) if table == "all" else [tables[keys[table]]]
    for word in settings:
        if word.partition("=")[0] in OWN:
            raise ArcvqError(f"{word}: the list of runs sets this: choose with --only, --data, --seeds or --suffix")
    if suffix and not re.fullmatch(r"[\w.-]+", suffix):
        raise ArcvqError(f"--suffix {suffix}: becomes part of file names: letters, digits, '-', '_' and '.' only")
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
