"""The runs of a table, and the loop that makes those whose result is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arcvq.config import nearest, to_dict
from arcvq.errors import ArcvqError
from arcvq.metrics import PROTOCOLS
from arcvq.storage import read_json, write_json
from arcvq.systems import load_system, parse_system
from arcvq.training import RunFolder, measure, train
from arcvq.training.environment import today

RUNS = Path(__file__).with_name("runs.json")
# What a quick run is measured by: LPIPS and FID take most of an evaluation's time.
QUICK = ("l1", "mse", "psnr", "ssim", "usage", "perplexity", "bits_per_image")
# Settings that change how a training is computed, not what is computed.
COMPUTING = ("compile", "capture", "device", "checkpoints", "log_every")


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

    def system(self) -> Any:
        own = (f"--name={self.name}", f"--training.seed={self.seed}")
        return load_system(f"{self.data}/{self.preset}", [*self.settings, *own])

    def result(self, results: Path) -> Path:
        return results / f"{self.key}.json"

    def done(self, results: Path) -> bool:
        """There is a result, and it is of these settings."""
        path = self.result(results)
        if not path.is_file():
            return False
        there = _decisive(to_dict(parse_system(read_json(path, "a result")["config"])))
        if there != _decisive(to_dict(self.system())):
            raise ArcvqError(f"{path}: a result of other settings: give these runs another name with --suffix")
        return True

    def make(self, out: Path, results: Path, download: bool = False) -> None:
        system, folder = self.system(), RunFolder(out / self.key)
        try:
            train(system, folder.path, quiet=True)
        except ArcvqError:
            if not folder.diverged.is_file():
                raise
            write_json(self.result(results), self._diverged(folder))
            return
        protocols, metrics = (["exact"], list(QUICK)) if self.quick else (list(PROTOCOLS), None)
        measured = measure(str(folder.path), protocols, metrics=metrics, download=download)
        write_json(self.result(results), measured.document)

    def _diverged(self, folder: RunFolder) -> dict[str, Any]:
        training = read_json(folder.diverged, "a training that diverged")
        return {
            "name": self.name,
            "data": self.data,
            "seed": self.seed,
            "protocols": {},
            "diverged": training.pop("why"),
            "config": to_dict(folder.system()),
            "training": training,
            "measured": {"date": today(), "device": training["device"]},
        }


def _decisive(config: dict[str, Any]) -> dict[str, Any]:
    return config | {"training": {k: v for k, v in config["training"].items() if k not in COMPUTING}}


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
        raise ArcvqError(f"no table {table!r}{nearest(table, ['all', *keys])}")
    chosen = list(tables.values()) if table == "all" else [tables[keys[table]]]
    known = {name for each in chosen for name in each["runs"]}
    for name in only:
        if name not in known:
            raise ArcvqError(f"--only {name}: {table} has no such run{nearest(name, known)}")
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
