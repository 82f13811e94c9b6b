"""What can be trained."""

from arcvq.tasks.adversarial import AdversarialTask
from arcvq.tasks.features import init_codebook_from_features
from arcvq.tasks.masks import MasksConfig
from arcvq.tasks.phase import Phase, first_step
from arcvq.tasks.reconstructor import Reconstructor
from arcvq.tasks.stacked import StackedTask
from arcvq.tasks.task import StepOutput, Task, sum_of_terms
from arcvq.tasks.tokenizer import TokenizerTask

__all__ = [
    "AdversarialTask",
    "MasksConfig",
    "Phase",
    "Reconstructor",
    "StackedTask",
    "StepOutput",
    "Task",
    "TokenizerTask",
    "first_step",
    "init_codebook_from_features",
    "sum_of_terms",
]
