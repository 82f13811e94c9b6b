"""Runs, finished or not, on one page: numbers, figures, a diagnosis, and what each tokenizer makes of test images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from arcvq.analysis import RunHistory, diagnose, write_report
from arcvq.data import Images, load_images, to_uint8, to_unit
from arcvq.errors import ArcvqError
from arcvq.storage import check_writable_folder, read_tensors
from arcvq.systems import TokenizerConfig, read_run
from arcvq.tokenizers import Tokenizer
from arcvq.training import RunFolder
from arcvq.training.checkpoint import checkpoints

SHOWN = 10


@dataclass
class Report:
    page: Path
    runs: list[RunHistory]

    def to_json(self) -> dict[str, Any]:
        return {
            "report": str(self.page),
            "runs": {
                run.name: {
                    "path": str(run.path),
                    "step": run.last_step,
                    "metrics": {protocol: dict(result.metrics) for protocol, result in run.results.items()},
                    "findings": [asdict(finding) for finding in diagnose(run)],
                }
                for run in self.runs
            },
        }


def make_report(folders: Sequence[str | Path], out: Path, *, title: str = "", notes: Sequence[str] = ()) -> Report:
    """Write `out/index.html` for these runs of one data set. The page says what is left out and why."""
    runs = _load(folders)
    configs = {run.name: _config(run) for run in runs}
    data = _common_data(configs)
    check_writable_folder(out)
    notes, originals, rebuilt = list(notes), None, {}
    try:
        images = _test_images(configs[runs[0].name])
        originals = images.gather(torch.linspace(0, len(images) - 1, min(SHOWN, len(images))).long())
        for run in runs:
            tokenizer = _tokenizer(run, configs[run.name], images)
            if tokenizer is None:
                notes.append(f"{run.name} has no reconstructions: its training has not written a checkpoint yet.")
            else:
                rebuilt[run.name] = to_uint8(tokenizer.reconstruct(to_unit(originals)))
    except ArcvqError as error:
        notes.append(f"Some reconstructions are missing: {error}.")
    title = title or f"{' and '.join(run.name for run in runs)} on {data}"
    page = write_report(runs, out, title=title, originals=originals, rebuilt=rebuilt, notes=notes)
    return Report(page, runs)


def _load(folders: Sequence[str | Path]) -> list[RunHistory]:
    """The runs by the names of their folders; where these are equal, with as much of the path as tells them apart."""
    places = [Path(folder).resolve().parts for folder in folders]
    for length in range(1, max(map(len, places), default=1) + 1):
        names = ["/".join(parts[-length:]) for parts in places]
        if len(set(names)) == len(names):
            break
    runs = [RunHistory.load(folder, name=name) for folder, name in zip(folders, names)]
    for run in runs:
        if not run.evaluations and not run.results:
            raise ArcvqError(
                f"{run.path}: has no evaluation yet; its training writes one at the start and along the way"
            )
    return runs


def _common_data(configs: dict[str, TokenizerConfig]) -> str:
    data = {name: (config.data.name, config.data.image_size) for name, config in configs.items()}
    first, *others = data
    for other in others:
        if data[other] != data[first]:
            found = [f"{name} of {set_}{f' at {size} pixels' if size else ''}" for name, (set_, size) in data.items()]
            raise ArcvqError(
                f"runs of different data do not compare: {', '.join(found)}; make a report for each data set"
            )
    return data[first][0]


def _config(run: RunHistory) -> TokenizerConfig:
    config = read_run(RunFolder(run.path))
    if not isinstance(config, TokenizerConfig):
        raise ArcvqError(f"{run.path}: is a run of the task {config.task}, and a report compares tokenizers")
    return config


def _test_images(config: TokenizerConfig) -> Images:
    root = Path(config.data.root) if config.data.root else None
    return load_images(config.data.name, split="test", root=root, image_size=config.data.image_size, download=False)


def _tokenizer(run: RunHistory, config: TokenizerConfig, images: Images) -> Tokenizer | None:
    """The finished model, else that of the last checkpoint."""
    folder = RunFolder(run.path)
    if (folder.model / "config.json").is_file():
        return Tokenizer.from_pretrained(folder.model)
    found = checkpoints(folder.checkpoints)
    if not found:
        return None
    tokenizer = config.build_tokenizer(images.channels, (images.height, images.width), max(run.last_step, 1))
    file = "tokenizer.safetensors" if config.training.ema is None else "tokenizer-average.safetensors"
    try:
        tokenizer.load_state_dict(read_tensors(found[-1] / file, "a checkpoint"))
    except RuntimeError:
        raise ArcvqError(f"{found[-1]}: does not fit {folder.config}") from None
    return tokenizer.eval()
