"""The runs of the tables: which there are, and how one is trained and measured."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from arcvq.config import did_you_mean, to_dict
from arcvq.errors import ArcvqError
from arcvq.metrics import METRICS, PROTOCOLS
from arcvq.storage import read_json, write_bytes, write_json
from arcvq.systems import RunConfig, load_config, measure, measure_generator, train
from arcvq.tokenizers import Tokenizer, reduce_codebook
from arcvq.training import RunFolder
from arcvq.training.environment import today
from reproduction.results import decisive_settings, first_difference, read_result, without_paths

ROOT = Path(__file__).resolve().parent.parent
RUNS_FILE = Path(__file__).with_name("runs.json")
# Metrics of quick runs: without LPIPS and FID, which take most of the time.
QUICK_METRICS = ("l1", "mse", "psnr", "ssim", "usage", "perplexity", "bits_per_image")
# Settings that the list of runs sets for each run.
RESERVED_SETTINGS = ("--name", "--system", "--data.name", "--training.seed", "--tokenizer")


@dataclass(frozen=True)
class Measuring:
    """How runs are measured, as the command line says.

    download  fetch the networks of LPIPS and FID
    limit     measure only the first test images, this many; of a prior, make at most this many
    foreign   a folder of images that no run was trained on, folder:PATH, to measure tokenizers of photographs on as well
    """

    download: bool = False
    limit: int | None = None
    foreign: str | None = None


@dataclass(frozen=True)
class Run:
    """One run of a table: a preset with settings, and a seed.

    protocols  which a tokenizer is measured under
    metrics    of a tokenizer; None: all but those that must be named
    abroad     whether it is measured on the foreign images as well
    base       the run that it needs: whose codebook is reduced, or whose tokens the prior is over
    codes      how many codes are left of the base's; the run is not trained
    tokenizer  a kept model in the repository whose tokens the prior is over, in place of a base
    samples    how many images of a prior are measured, with the options of its sampling
    """

    data: str
    name: str
    seed: int
    preset: str
    settings: tuple[str, ...]
    protocols: tuple[str, ...] = tuple(PROTOCOLS)
    metrics: tuple[str, ...] | None = None
    abroad: bool = False
    base: Run | None = None
    codes: int | None = None
    tokenizer: str | None = None
    samples: int | None = None
    sampling: tuple[tuple[str, Any], ...] = ()

    @property
    def key(self) -> str:
        """`DATA/NAME-seedN`, the path of its result without suffix."""
        return f"{self.data}/{self.name}-seed{self.seed}"

    def config(self, out: Path) -> RunConfig:
        """The configuration that trains this run, with all runs below `out`; of a reduced codebook that of its base."""
        own_settings = [f"--name={self.name}", f"--training.seed={self.seed}"]
        if self.tokenizer is not None:
            own_settings.append(f"--tokenizer={ROOT / self.tokenizer}")
        elif self.samples is not None and self.base is not None:
            own_settings.append(f"--tokenizer={out / self.base.key}")
        return load_config(f"{self.data}/{self.preset}", [*self.settings, *own_settings])

    def result_path(self, results: Path) -> Path:
        return results / f"{self.key}.json"

    def is_measured(self, out: Path, results: Path) -> bool:
        """Whether there is a result; fails if it was made with other settings."""
        path = self.result_path(results)
        if not path.is_file():
            return False
        wanted = decisive_settings(to_dict(self.config(out)))
        if where := first_difference(read_result(path).settings, wanted):
            raise ArcvqError(
                f"{path}: was made with other settings ({where}): name these runs differently with --suffix"
            )
        return True

    def train_and_measure(self, out: Path, results: Path, measuring: Measuring) -> None:
        """Train, or resume an interrupted training, measure, and write the result. A diverged training is a result too."""
        folder = RunFolder(out / self.key)
        try:
            self.make(out)
        except ArcvqError:
            if not folder.diverged.is_file():
                raise
            document = self._diverged_document(folder)
        else:
            document = self.measure(folder.path, measuring)
        lines = folder.metrics.read_text("utf-8").splitlines(keepends=True) if folder.metrics.is_file() else []
        evaluations = "".join(line for line in lines if json.loads(line)["kind"] == "eval")
        write_bytes(results / f"{self.key}.metrics.jsonl", evaluations.encode())
        document |= {"data": self.data, "config": without_paths(document["config"])}
        write_json(self.result_path(results), document)

    def make(self, out: Path) -> None:
        """Train the run, or reduce the codebook of its base; the base first."""
        if self.base is not None:
            self.base.make(out)
        if self.codes is None:
            train(self.config(out), out / self.key, quiet=True)
            return
        assert self.base is not None
        folder, base = RunFolder(out / self.key), RunFolder(out / self.base.key)
        reduced = reduce_codebook(Tokenizer.from_pretrained(base.path), self.codes, self.seed)
        folder.write_config({**base.read_config(), "name": self.name})
        shutil.copy(base.training, folder.training)
        reduced.save_pretrained(folder.model)

    def measure(self, folder: Path, measuring: Measuring) -> dict[str, Any]:
        """The result of the run in this folder."""
        limit, download = measuring.limit, measuring.download
        if self.samples is not None:
            samples = min(self.samples, limit or self.samples)
            return measure_generator(folder, samples, options=dict(self.sampling), download=download).document
        document = measure(folder, self.protocols, metrics=self.metrics, limit=limit, download=download).document
        if self.codes is not None:
            document["reduced"] = self.codes
        if self.abroad and measuring.foreign is not None:
            foreign = measure(
                folder,
                ["exact"],
                data=measuring.foreign,
                split="all",
                metrics=self.metrics,
                limit=limit,
                download=download,
            )
            name = Path(measuring.foreign.partition(":")[2]).name
            document["foreign"] = {name: foreign.document["protocols"]}
        return document

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
    folder: str | None = None,
) -> list[Run]:
    """The runs of one table or of all, narrowed down by name, data set and seed. `settings` override those of the list.

    `folder` has the images in place of the data set's. `all` leaves out the tables whose images are in a folder.
    """
    document = read_json(RUNS_FILE, "the list of runs")
    tables = document["tables"]
    keys = {name: key for key, each in tables.items() for name in (key, each.get("alias")) if name}
    if table != "all" and table not in keys:
        raise ArcvqError(f"no table {table!r}{did_you_mean(table, ['all', *keys])}")
    if table == "all":
        chosen = [each for each in tables.values() if "folder" not in each]
    else:
        chosen = [tables[keys[table]]]
    if folder is None and any("folder" in each for each in chosen):
        raise ArcvqError(f"{table}: its images are {chosen[0]['folder']}: say where they are with --folder PATH")
    for word in settings:
        if word.partition("=")[0] in RESERVED_SETTINGS:
            raise ArcvqError(f"{word}: is set by the list of runs: use --only, --data, --seeds, --folder or --suffix")
    if suffix and not re.fullmatch(r"[\w.-]+", suffix):
        raise ArcvqError(
            f"--suffix {suffix}: expected only letters, digits, '-', '_' and '.', because it becomes part of file names"
        )
    known = {name for each in chosen for name in each["runs"]}
    for name in only:
        if name not in known:
            raise ArcvqError(f"--only {name}: {table} has no such run{did_you_mean(name, known)}")
    own_settings = (*settings, *([] if folder is None else [f"--data.name=folder:{folder}"]))
    found = [
        make_run(document, where, name, seed, suffix, own_settings)
        for each in chosen
        for seed in seeds or each["seeds"]
        for where in data or each["data"]
        for name in each["runs"]
        if not only or name in only
    ]
    return list(dict.fromkeys(found))


def make_run(
    document: dict[str, Any], data: str, name: str, seed: int, suffix: str = "", settings: tuple[str, ...] = ()
) -> Run:
    """A run of the list, with the run that it needs."""
    about = document["runs"][name]
    measured = document["measured"].get(data, {})
    run = Run(
        data,
        f"{name}-{suffix}" if suffix else name,
        seed,
        about["preset"],
        (*about.get("settings", ()), *settings),
        protocols=tuple(measured.get("protocols", PROTOCOLS)),
        metrics=(*METRICS, "kid") if measured.get("kid") else None,
        abroad=measured.get("foreign", False),
        base=make_run(document, data, about["base"], seed, suffix, settings) if "base" in about else None,
        codes=about.get("codes"),
        tokenizer=about.get("tokenizer"),
        samples=about.get("samples"),
        sampling=tuple(about.get("sampling", {}).items()),
    )
    return replace(run, protocols=("exact",), metrics=QUICK_METRICS, abroad=False) if about.get("quick") else run
