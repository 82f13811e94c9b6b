"""The sections of a configuration that belong to no module: which data, how long, how fast."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from arcvq.errors import ArcvqError


@dataclass(kw_only=True)
class DataConfig:
    """name        sample, mnist, fashion-mnist, cifar10, or folder:PATH
    batch_size  images per optimizer step, over all processes and micro-batches
    image_size  folders only: the shorter side is resized to it and the centre cut out
    root        where data sets lie or are downloaded to; default: $ARCVQ_DATA, else a cache folder
    limit       train on the first so many images only
    holdout     keep the last so many training images out of training: the looks along the way are at them, not at the test set
    """

    name: str = "sample"
    batch_size: int = 1024
    image_size: int | None = None
    root: str | None = None
    limit: int | None = None
    holdout: int | None = None

    def __post_init__(self) -> None:
        if self.name.startswith("folder:"):
            # Absolute, so that the run can be evaluated from anywhere.
            self.name = f"folder:{Path(self.name.removeprefix('folder:')).expanduser().absolute()}"
        if self.root is not None:
            self.root = str(Path(self.root).expanduser().absolute())
        if self.batch_size < 1:
            raise ArcvqError(f"data.batch_size must be at least 1, got {self.batch_size}")
        for name in ("limit", "holdout"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ArcvqError(f"data.{name} must be at least 1, got {getattr(self, name)}")


@dataclass(kw_only=True)
class StageConfig:
    """One stage of training: which parts learn, for how long, how fast. Each stage has an optimizer of its own.

    train  beginnings of parameter names, e.g. [encoder, quantizer]; empty: everything
    """

    train: list[str] = field(default_factory=list)
    epochs: int | None = None
    steps: int | None = None
    learning_rate: float | None = None


@dataclass(kw_only=True)
class TrainingConfig:
    """epochs or steps    how long; give one
    schedule           of the learning rate: constant, or cosine (down to final_rate × learning_rate at the end)
    flat_share         of each stage, before the cosine begins
    warmup_steps       the rate of step n of them is n/warmup_steps of the schedule's, which begins at the first step all the same
    accumulate         micro-batches per optimizer step; the ArcLoss contrasts tokens within a micro-batch
    gradient_clip      largest global norm of the gradient; none by default
    precision          fp32, bf16 or fp16 for the trunk; the quantizer is float32 in all of them
    compile            torch.compile the model
    capture            the whole step as a CUDA graph, launched as one: auto (wherever that can be), always (or an error that
                       says why not), never
    device             auto (what Accelerate finds), or cpu
    evaluations        how often the test set (or data.holdout) is looked at along the way, beside a few early looks at log-spaced steps
    evaluation_images  how many of its images
    checkpoints        how many checkpoints are written along the way; the newest two are kept
    select             which weights become model/: last, or test-best: the lowest test MSE seen (what the released code of
                       the paper reports; it chooses on the data it is measured on, so say so when you quote it)
    stages             empty: one stage that trains everything
    init_from          a run or a saved tokenizer whose weights and codes the training starts from; its step count starts at 0
    """

    epochs: int | None = None
    steps: int | None = None
    learning_rate: float = 3e-4
    betas: tuple[float, ...] = (0.9, 0.999)
    weight_decay: float = 0.0
    schedule: Literal["constant", "cosine"] = "constant"
    final_rate: float = 0.0
    flat_share: float = 0.0
    warmup_steps: int = 0
    accumulate: int = 1
    gradient_clip: float | None = None
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    compile: bool = False
    capture: Literal["auto", "always", "never"] = "auto"
    device: Literal["auto", "cpu"] = "auto"
    seed: int = 1
    evaluations: int = 20
    evaluation_images: int = 2000
    checkpoints: int = 10
    log_every: int = 50
    select: Literal["last", "test-best"] = "last"
    stages: list[StageConfig] = field(default_factory=list)
    init_from: str | None = None

    def __post_init__(self) -> None:
        for name in ("accumulate", "log_every", "evaluation_images"):
            if getattr(self, name) < 1:
                raise ArcvqError(f"training.{name} must be at least 1, got {getattr(self, name)}")
        for name in ("seed", "evaluations", "checkpoints", "warmup_steps", "final_rate", "weight_decay"):
            if getattr(self, name) < 0:
                raise ArcvqError(f"training.{name} must not be negative, got {getattr(self, name)}")
        for name in ("learning_rate", "gradient_clip"):
            if getattr(self, name) is not None and getattr(self, name) <= 0:
                raise ArcvqError(f"training.{name} must be positive, got {getattr(self, name)}")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ArcvqError(f"training.betas takes two numbers from 0 to below 1, got {list(self.betas)}")
        if not 0 <= self.flat_share < 1:
            raise ArcvqError(f"training.flat_share must be from 0 to below 1, got {self.flat_share}")
        if self.seed >= 2**63:
            raise ArcvqError(f"training.seed must be below 2^63, got {self.seed}")
        if self.stages and (self.epochs is not None or self.steps is not None):
            raise ArcvqError("training: with stages, give each its own epochs or steps, not the whole")
        self.plan()  # fails early when a length is missing or doubled

    def plan(self) -> list[StageConfig]:
        """The stages as they will run, each with exactly one of epochs and steps and a learning rate."""
        stages = self.stages or [StageConfig(epochs=self.epochs, steps=self.steps)]
        for i, stage in enumerate(stages):
            where = f"training.stages[{i}]" if self.stages else "training"
            if (stage.epochs is None) == (stage.steps is None):
                raise ArcvqError(f"{where}: give either epochs or steps")
            if (stage.epochs or stage.steps or 0) < 1:
                raise ArcvqError(f"{where}: epochs or steps must be at least 1")
            if stage.learning_rate is not None and stage.learning_rate <= 0:
                raise ArcvqError(f"{where}.learning_rate must be positive, got {stage.learning_rate}")
        return [
            StageConfig(
                train=list(stage.train),
                epochs=stage.epochs,
                steps=stage.steps,
                learning_rate=stage.learning_rate or self.learning_rate,
            )
            for stage in stages
        ]

    def stage_steps(self, batches_per_epoch: int) -> list[int]:
        return [stage.steps or (stage.epochs or 0) * batches_per_epoch for stage in self.plan()]
