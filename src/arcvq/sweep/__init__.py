"""The runs behind a table: which there are, how long they take, and running those that are not measured yet."""

from arcvq.sweep.plan import Plan, Planned, make_plan
from arcvq.sweep.run import Places, Run, choose_runs
from arcvq.sweep.runner import Outcome, run_plan

__all__ = ["Outcome", "Places", "Plan", "Planned", "Run", "choose_runs", "make_plan", "run_plan"]
