"""Training: one loop per kind of model, checkpoints, resume, and the measured result."""

from arcvq.errors import Stopped
from arcvq.training.dry_run import DryRun, dry_run
from arcvq.training.loop import train
from arcvq.training.results import Measured, measure
from arcvq.training.run import RunFolder

__all__ = ["DryRun", "Measured", "RunFolder", "Stopped", "dry_run", "measure", "train"]
