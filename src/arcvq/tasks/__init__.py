"""What can be trained."""

from arcvq.tasks.reconstructor import Reconstructor
from arcvq.tasks.stacked import StackedTask
from arcvq.tasks.task import StepOutput, Task, sum_of_terms
from arcvq.tasks.tokenizer import TokenizerTask

__all__ = ["Reconstructor", "StackedTask", "StepOutput", "Task", "TokenizerTask", "sum_of_terms"]
