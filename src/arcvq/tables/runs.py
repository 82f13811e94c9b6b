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
    Experiment,
)
from arcvq.tables.studies import (
    GRID,
    HEAVIER,
    RECIPE,
    SHAPED,
    budgets,
    challenges,
    finals,
    on_top,
    tunings,
    with_and_without_runs,
)

TUNING_RUNS, BUDGET_RUNS, SAMP_RUNS = tunings(CHOSEN), budgets(CHOSEN), with_and_without_runs(CHOSEN)
CHALLENGE_RUNS = challenges(CHOSEN)
ON_TOP_RUNS = list(on_top(CHOSEN).values())
RECIPE_RUNS = [*RECIPE, *finals(CHOSEN.get("finals", ())).values()]

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        *RIVALS, *PARTS, *CONTINUOUS, *ARC, *BEYOND, *RELEASED, *SCAFFOLD,
        *GRADIENT, *TUNING_RUNS, *RECIPE_RUNS, *BUDGET_RUNS, *SAMP_RUNS, *SHAPED, *ON_TOP_RUNS, *GRID, *HEAVIER.values(),
    )
}  # fmt: skip
