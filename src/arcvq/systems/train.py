"""Train what a configuration describes."""

from __future__ import annotations

from pathlib import Path

import torch

from arcvq.config import to_dict
from arcvq.errors import ArcvqError
from arcvq.systems.config import RunConfig
from arcvq.systems.parsing import parse_config
from arcvq.training import RunFolder, Trainer
from arcvq.training.launch import make_accelerator


def train(config: RunConfig, out: str | Path, *, quiet: bool = False, stop_after: int | None = None) -> Path:
    """Train into the run folder `out` and return the folder of the model; an unfinished run there, or a shorter one, goes on.

    `stop_after` interrupts the run after so many steps, as a signal would: a checkpoint, then `Stopped`.
    """
    folder = RunFolder(out)
    if folder.is_finished(to_dict(config)):
        return folder.model  # the data is not needed any more
    make_trainer(config, out, quiet=quiet).run(stop_after)
    return folder.model


def make_trainer(config: RunConfig, out: str | Path, *, quiet: bool = False, dry_run: bool = False) -> Trainer:
    """A trainer of this configuration, with its data loaded and its networks built."""
    accelerator = make_accelerator(config.training)
    source, evaluation = config.load_for_dry_run() if dry_run else config.load()
    torch.manual_seed(config.training.seed)
    task = config.build(source)
    return Trainer(
        task, source, evaluation, config.training, out, config=to_dict(config), quiet=quiet, accelerator=accelerator
    )


def read_run(folder: RunFolder) -> RunConfig:
    """The configuration that a run was made with."""
    try:
        return parse_config(folder.read_config())
    except ArcvqError as error:
        raise ArcvqError(f"{folder.config}: {error}") from None
