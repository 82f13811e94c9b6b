"""Training: one loop for every task, the run folder, checkpoints, resume."""

from arcvq.errors import Stopped
from arcvq.training.config import NetworkConfig, StageConfig, TrainingConfig
from arcvq.training.run import RunFolder
from arcvq.training.trainer import Trainer

__all__ = ["NetworkConfig", "RunFolder", "StageConfig", "Stopped", "Trainer", "TrainingConfig"]
