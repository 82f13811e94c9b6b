"""Tiny trainings of every prior with a preset for the sample, on the embedded tokenizer."""

from pathlib import Path
from typing import Any

from arcvq.systems import SYSTEMS, PriorRunConfig, load_config, preset_names

# The priors with a preset for the sample.
PRIOR_SYSTEMS = sorted(
    name for name, system in SYSTEMS.items() if f"sample/{name}" in preset_names() and system.task == "prior"
)
SMALLER: dict[str, dict[str, Any]] = {
    "gpt": {"prior.width": 16, "prior.layers": 1, "prior.heads": 2},
    "ldm": {"prior.width": 8, "prior.head_width": 8, "prior.groups": 4, "prior.context_width": 8, "prior.steps": 4},
    "pixelcnn": {"prior.width": 8, "prior.layers": 2, "prior.head_width": 16},
    "maskgit": {"prior.width": 16, "prior.layers": 1, "prior.heads": 2},
    "rq-transformer": {"prior.width": 16, "prior.layers": 1, "prior.heads": 2},
}
LENGTH: dict[str, Any] = {
    "tokenizer": "tiny",
    "data.limit": 48,
    "data.batch_size": 20,
    "training.steps": 6,
    "training.learning_rate": 0.01,
    "training.warmup_steps": 0,
    "training.log_every": 1,
    "training.evaluations": 1,
    "training.evaluation_images": 16,
    "training.checkpoints": 2,
}


def tiny_prior(name: str, changes: dict[str, Any] | None = None) -> PriorRunConfig:
    """The sample's preset of a prior, made tiny."""
    settings = {**LENGTH, **SMALLER[name], **(changes or {})}
    config = load_config(f"sample/{name}", [f"--{key}={value}" for key, value in settings.items()])
    assert isinstance(config, PriorRunConfig)
    return config


def folder_of(run: Path) -> Path:
    return run / "model"
