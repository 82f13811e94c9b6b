"""What a sweep will do and how long that takes, before it does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from arcvq.config import to_dict
from arcvq.errors import ArcvqError
from arcvq.sweep.run import Places, Run, choose_runs
from arcvq.sweep.sharing import mps_available
from arcvq.sweep.times import Time, Times, check_settings
from arcvq.systems import System, load_system, preset_names
from arcvq.tables import Result, read_result, read_results
from arcvq.tables.results import difference
from arcvq.training import RunFolder
from arcvq.training.checkpoint import checkpoints, read_position
from arcvq.training.environment import device_name

# Trainings that share a device under MPS unless told, if there are so many.
TOGETHER = 4
# Seconds of an evaluation nobody has timed yet.
EVALUATE, QUICK_EVALUATE = 60.0, 10.0
FOREIGN = "other settings"  # under its name lies another run
FINISHED = ("done", "diverged", "incomplete", "not in this version", FOREIGN)


@dataclass
class Planned:
    """A run, how it stands, and the seconds that are left of it: of the device alone, and of measuring."""

    run: Run
    state: str
    train: float | None = None
    evaluate: float = 0.0
    source: str = ""
    completes: bool = False  # an incomplete result is to be completed
    trained: bool = False  # only to be measured
    guessed: bool = False  # how long measuring takes
    differs: str = ""  # how what lies under its name is another run

    @property
    def open(self) -> bool:
        return self.completes or self.state not in FINISHED

    def seconds(self, times: float = 1) -> float | None:
        """From start to result, when the training takes so many times as long as it would alone."""
        return None if self.train is None else self.train * times + self.evaluate


@dataclass
class Plan:
    runs: list[Planned]
    places: Places
    times: Times
    device: str
    parallel: int
    asked: bool = True  # for so many at a time
    mps: bool = False

    @property
    def open(self) -> list[Planned]:
        return [planned for planned in self.runs if planned.open]

    @property
    def foreign(self) -> dict[str, str]:
        """Runs that cannot be made, because another lies under their name → how it differs."""
        return {planned.run.key: planned.differs for planned in self.runs if planned.differs}

    @property
    def unknown(self) -> int:
        return sum(planned.train is None for planned in self.open)

    @property
    def to_train(self) -> int:
        return sum(not planned.trained for planned in self.open)

    @property
    def at_a_time(self) -> int:
        """Trainings that share the device."""
        return max(1, min(self.parallel, self.to_train))

    @property
    def seconds(self) -> float:
        """Trainings share the device, one after another is measured beside them; runs of unknown length are left out."""
        known = [planned for planned in self.open if planned.train is not None]
        trained = measured = 0.0
        for first in range(0, len(known), self.parallel):
            together = known[first : first + self.parallel]
            trained += sum(planned.train or 0.0 for planned in together)
            for planned in together:
                measured = max(trained, measured) + planned.evaluate
        return measured

    def to_json(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "parallel": self.parallel,
            "mps": self.mps,
            "seconds": self.seconds,
            "unknown": self.unknown,
            "runs": [
                {
                    "run": planned.run.key,
                    "state": planned.state,
                    "train_seconds": planned.train,
                    "evaluate_seconds": planned.evaluate,
                    "source": planned.source,
                    "guessed": planned.guessed,
                    "differs": planned.differs,
                    "command": planned.run.train_command(self.places)[1:] if planned.open else None,
                }
                for planned in self.runs
            ],
        }


def make_plan(
    table: str,
    places: Places,
    *,
    data: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    only: Sequence[str] | None = None,
    settings: Sequence[str] = (),
    suffix: str | None = None,
    complete: bool = False,
    device: torch.device,
    parallel: int | None = None,
    dry_runs: bool = True,
    say: Callable[[str], None] = lambda _: None,
    hold: Callable[[], None] = lambda: None,
) -> Plan:
    """`parallel` trainings at a time; by default as many as pay, which without MPS is one. `say` hears of trial steps; `hold` is
    called before them, when all that was asked for is known to make sense: whoever means to run the plan locks the folder then."""
    runs = choose_runs(table, data=data, seeds=seeds, only=only, settings=settings, suffix=suffix)
    planned = [Planned(run, run.state(places)) for run in runs]
    for each in planned:
        each.completes = complete and each.state == "incomplete" and each.run.preset in preset_names()
        each.trained = each.run.trained(places)
        if each.open:
            check_settings(each.run, again=each.completes and each.trained)
        each.differs = _foreign(each, places) or ""
        if each.differs:
            each.state, each.completes = FOREIGN, False
    hold()
    results = read_results(places.results) if places.results.is_dir() else []
    times = Times(places.runs / "times.json", results, device_name(device), dry_runs=dry_runs, say=say)
    plan = Plan(planned, places, times, device_name(device), parallel or 1, asked=parallel is not None)
    if mps_available(device):
        if not plan.asked:
            plan.parallel = max(1, min(TOGETHER, plan.to_train))
        plan.mps = plan.at_a_time > 1
    try:
        for each in plan.open:
            estimate(each, times, places)
    finally:
        times.close()
    return plan


def _foreign(planned: Planned, places: Places) -> str | None:
    """How what lies under a run's name, its result or its folder, is another run than this; None if it is this one."""
    run, path, folder = planned.run, planned.run.result(places), planned.run.folder(places)
    if planned.completes and planned.trained:
        # Only measured again, it may be of any settings, if the weights are: the kept model's are, a folder's may not be.
        remedy = f"take {folder.path} away, or choose another --out"
        return _other(run, path, folder.system(), remedy) if folder.training.is_file() else None
    try:
        wanted = load_system(run.preset, run.overrides)
    except ArcvqError:  # of a run that is to be made, it was told before
        return None
    remedy = "take it away, or keep yours apart with --suffix, or with --results and --out"
    differing = _other(run, path, wanted, remedy) if path.is_file() else None
    if differing or not planned.open:
        return differing
    try:
        run.check_folder(places)
    except ArcvqError as error:
        return str(error)
    return None


def _other(run: Run, path: Path, system: System, remedy: str) -> str | None:
    """How the result there is not one of this system."""
    differing = difference(read_result(path), Result(run.data, {"config": to_dict(system)}))
    return differing and f"{path}: of another run: {differing} here; {remedy}"


def estimate(planned: Planned, times: Times, places: Places) -> None:
    known = times.evaluation(planned.run)
    planned.guessed = known is None
    planned.evaluate = known if known is not None else QUICK_EVALUATE if planned.run.experiment.quick else EVALUATE
    if planned.trained:
        planned.train, planned.source = 0.0, "its weights"
        return
    found = times.find(planned.run)
    if found is not None:
        planned.train = found.train * _left(planned.run.folder(places), found)
        planned.source = found.source


def _left(folder: RunFolder, time: Time) -> float:
    """The share of a training that its last checkpoint leaves to do."""
    saved = checkpoints(folder.checkpoints) if folder.checkpoints.is_dir() else []
    return max(0.0, 1 - read_position(saved[-1]).step / time.steps) if saved else 1.0
