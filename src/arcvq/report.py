"""Makes the report of one or several tokenizer runs, finished or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arcvq.analysis import RunHistory, diagnose, write_report
from arcvq.data import Images, load_images, to_uint8, to_unit
from arcvq.errors import ArcvqError
from arcvq.storage import check_writable_folder, read_tensors
from arcvq.systems import TokenizerConfig, read_run
from arcvq.tokenizers import Tokenizer
from arcvq.training import RunFolder
from arcvq.training.checkpoint import checkpoints

SHOWN_IMAGES = 10


@dataclass
class Report:
    """The path of the page and the runs on it."""

    page: Path
    runs: list[RunHistory]

    def to_json(self) -> dict[str, Any]:
        """The path of the page, and path, metrics and findings of each run."""
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


def make_report(
    folders: Sequence[str | Path],
    out: Path,
    *,
    title: str = "",
    notes: Sequence[str] = (),
    generated: tuple[Tensor, str] | None = None,
) -> Report:
    """Write `out/index.html` for runs of one data set. Notes on the page say what is missing and why.

    `generated`: a picture of generated images, uint8 (C, H, W), and its caption.
    """
    runs = _load_histories(folders)
    configs = {run.name: _tokenizer_config(run) for run in runs}
    data = _common_data(configs)
    check_writable_folder(out)
    notes, originals, reconstructions = list(notes), None, {}
    try:
        images = _test_images(configs[runs[0].name])
        originals = images.gather(torch.linspace(0, len(images) - 1, min(SHOWN_IMAGES, len(images))).long())
        for run in runs:
            tokenizer = _load_tokenizer(run, configs[run.name], images)
            if tokenizer is None:
                notes.append(f"{run.name} has no reconstructions: it has no checkpoint yet.")
            else:
                reconstructions[run.name] = to_uint8(tokenizer.reconstruct(to_unit(originals)))
    except ArcvqError as error:
        notes.append(f"Some reconstructions are missing: {error}.")
    title = title or f"{' and '.join(run.name for run in runs)} on {data}"
    page = write_report(
        runs,
        out,
        title=title,
        originals=originals,
        reconstructions=reconstructions,
        notes=notes,
        generated=generated,
    )
    return Report(page, runs)


def _load_histories(folders: Sequence[str | Path]) -> list[RunHistory]:
    """Read the run folders. A run is named by its folder, with as much of the path as makes the names unique."""
    paths = [Path(folder).resolve().parts for folder in folders]
    for length in range(1, max(map(len, paths), default=1) + 1):
        names = [Path(*parts[-length:]).as_posix() for parts in paths]
        if len(set(names)) == len(names):
            break
    runs = [RunHistory.load(folder, name=name) for folder, name in zip(folders, names)]
    for run in runs:
        if not run.evaluations and not run.results:
            raise ArcvqError(
                f"{run.path}: has no evaluation yet: wait for the first one of its training, or run arcvq evaluate"
            )
    return runs


def _common_data(configs: dict[str, TokenizerConfig]) -> str:
    """The name of the data set that all runs share; fails if they differ."""
    data = {name: (config.data.name, config.data.image_size) for name, config in configs.items()}
    first, *others = data
    for other in others:
        if data[other] != data[first]:
            found = [f"{name} of {set_}{f' at {size} pixels' if size else ''}" for name, (set_, size) in data.items()]
            raise ArcvqError(
                f"runs of different data cannot be compared: {', '.join(found)}; make a report for each data set"
            )
    return data[first][0]


def _tokenizer_config(run: RunHistory) -> TokenizerConfig:
    """The configuration of a run; fails if the run does not train a tokenizer."""
    config = read_run(RunFolder(run.path))
    if not isinstance(config, TokenizerConfig):
        raise ArcvqError(f"{run.path}: trains the task {config.task}: a report takes runs that train a tokenizer")
    return config


def _test_images(config: TokenizerConfig) -> Images:
    """The test images of the run's data set, if they are on this machine."""
    root = Path(config.data.root) if config.data.root else None
    return load_images(
        config.data.name,
        split="test",
        root=root,
        image_size=config.data.image_size,
        download=False,
        holdout_every=config.data.holdout_every,
        on_error=config.data.on_error,
    )


def _load_tokenizer(run: RunHistory, config: TokenizerConfig, images: Images) -> Tokenizer | None:
    """The finished tokenizer, else that of the last checkpoint; None before the first checkpoint."""
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
