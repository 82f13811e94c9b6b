"""Train what a configuration describes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from arcvq import distributed
from arcvq.config import to_dict
from arcvq.errors import ArcvqError
from arcvq.systems.config import RunConfig
from arcvq.systems.parsing import parse_config
from arcvq.tasks.phase import first_step
from arcvq.training import RunFolder, Trainer
from arcvq.training.launch import make_accelerator

# Settings that are steps, or below 1 a share of the whole training.
SHARES = ("continuous_first", "adversarial.start")


def train(config: RunConfig, out: str | Path, *, quiet: bool = False, stop_after: int | None = None) -> Path:
    """Train into the run folder `out` and return the folder of the model; an unfinished run there, or a shorter one, goes on.

    `stop_after` is the number of steps after which the run is interrupted, as by a signal: a checkpoint, then `Stopped`.
    """
    folder = RunFolder(out)
    if folder.is_finished(to_dict(config)):
        return folder.model  # the data is not needed any more
    make_trainer(config, out, quiet=quiet).run(stop_after)
    return folder.model


def make_trainer(config: RunConfig, out: str | Path, *, quiet: bool = False, dry_run: bool = False) -> Trainer:
    """A trainer of this configuration, with its data loaded and its networks built."""
    accelerator = make_accelerator(config.training)
    source, evaluation = config.load_for_dry_run() if dry_run else config.load_for_run(Path(out))
    settings = to_dict(config)
    distributed.on_first_process(lambda: keep_beginnings(RunFolder(out), settings, source.batches_per_epoch))
    torch.manual_seed(config.training.seed)
    task = config.build(source)
    return Trainer(
        task, source, evaluation, config.training, out, config=settings, quiet=quiet, accelerator=accelerator
    )


def keep_beginnings(folder: RunFolder, settings: Mapping[str, Any], batches_per_epoch: int) -> None:
    """Before a finished run is made longer: what began at a share of it must not begin anew at the same share of the longer one.

    With such a share the run is refused. With the steps that it was, config.yaml gets these, so that only the length differs.
    """
    steps = folder.finished_steps()
    there = folder.read_config() if steps is not None and folder.config.is_file() else {}
    if steps is None or there.get("training") == settings.get("training"):
        return
    in_steps, refused = dict(there), {}
    for key in SHARES:
        share = _setting(there, key) or 0
        begins = first_step(share, steps)
        if 0 < share < 1 and _setting(settings, key) == share:
            refused[key] = begins
        elif 0 < share < 1 and _setting(settings, key) == begins:
            in_steps = _with_setting(in_steps, key, begins)
    try:
        if in_steps != there:
            folder.write_config(in_steps)
        if in_steps != there or refused:
            folder.check(settings, batches_per_epoch)  # names what else differs
        if refused:
            raise ArcvqError(
                f"{folder.path}: {' and '.join(refused)} began at a share of {steps:,} steps, which of a longer run is a later step: "
                f"give steps, {' '.join(f'--{key} {begins}' for key, begins in refused.items())}"
            )
    except ArcvqError:
        if in_steps != there:
            folder.write_config(there)
        raise


def _setting(settings: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key; None without its section."""
    section, _, name = key.rpartition(".")
    found = settings.get(section) or {} if section else settings
    return found.get(name)


def _with_setting(settings: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """The settings with another value at a dotted key whose section is there."""
    section, _, name = key.rpartition(".")
    return {**settings, section: {**settings[section], name: value}} if section else {**settings, name: value}


def read_run(folder: RunFolder) -> RunConfig:
    """The configuration that a run was made with."""
    try:
        return parse_config(folder.read_config())
    except ArcvqError as error:
        raise ArcvqError(f"{folder.config}: {error}") from None
