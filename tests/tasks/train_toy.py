"""Train one toy task in this process, or in each of the processes that a launcher started: train_toy.py TASK OUT SETTINGS.json"""

import json
import sys
from pathlib import Path

import torch
from toy_tasks import AdversarialPair, Regression, points

from arcvq.config import parse
from arcvq.errors import Stopped
from arcvq.training import Trainer, TrainingConfig

TASKS = {"regression": (Regression, 1), "pair": (AdversarialPair, 3)}


def make_trainer(name: str, out: Path, settings: dict[str, object]) -> Trainer:
    torch.manual_seed(0)
    make_task, width = TASKS[name]
    training = parse(TrainingConfig, {"steps": 12, "learning_rate": 0.05, "log_every": 1, "evaluations": 2, **settings})
    return Trainer(make_task(), points(width), points(width), training, out, quiet=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        make_trainer(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])).run()
    except Stopped as stopped:
        print(stopped)
