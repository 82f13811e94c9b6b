"""Every run that a table or a study is made of, by name."""

from arcvq.tables.chosen import CHOSEN
from arcvq.tables.experiments import (
    ARC,
    BEYOND,
    CONTINUOUS,
    GRADIENT,
    PARTS,
    RELEASED,
    RIVALS,
    SCAFFOLD,
    SCHEDULES,
    Experiment,
)
from arcvq.tables.studies import GRID, HEAVIER, RECIPE, budgets, tunings, with_and_without

TUNING_RUNS, BUDGET_RUNS, SAMP_RUNS = tunings(CHOSEN), budgets(CHOSEN), with_and_without(CHOSEN)

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        *RIVALS, *PARTS, *CONTINUOUS, *ARC, *BEYOND, *RELEASED, *SCAFFOLD,
        *GRADIENT, *TUNING_RUNS, *RECIPE, *BUDGET_RUNS, *SAMP_RUNS, *SCHEDULES, *GRID, *HEAVIER.values(),
    )
}  # fmt: skip
