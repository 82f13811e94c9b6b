"""Result files of the studies, made up for the purpose."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from arcvq.tables import group, read_results
from arcvq.tables.studies import CANDIDATES, LEARNING, SCHEDULES, tuning

Add = Callable[..., None]

LOWER = [("5e-4", schedule) for schedule in SCHEDULES]
# For `tune`, and what it chooses.
BEST_AT_1E_3 = (21.0, 24.0, 23.5, 22.0, 20.0, 20.5, 19.0, 19.5)
VQ_VAE = {"vq-vae": {"constant": "2e-3", "cosine": "1e-3"}}


def named(folder: Path) -> Any:
    return group(read_results(folder)).get("cifar10", {})


def tune(add: Add, system: str, *psnrs: float) -> None:
    """One result for each rate and schedule, in their order; on the test set all are the same. With all eight come those at half
    the lowest rate, which are worse."""
    runs = tuning(system, [*LEARNING, *LOWER])
    for run, psnr in zip(runs.values(), [*psnrs, *[18.0, 18.0] * (len(psnrs) == len(LEARNING))]):
        add(run.name, exact={"psnr": 20.0}, looks={50.0: 30.0, 100.0: psnr}, holdout=5000, epochs=100)


def try_recipes(add: Add, **psnrs: float) -> None:
    for candidate in CANDIDATES:
        psnr = psnrs.get(candidate.name.removeprefix("scaffold-"), 19.0)
        measured = {"psnr": psnr, "usage": 0.9}
        add(f"recipe-{candidate.name}", exact=measured, looks={100.0: psnr}, holdout=5000, epochs=100)
