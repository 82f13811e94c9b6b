"""How long, how fast and in what precision a task is trained."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from arcvq.errors import ArcvqError


@dataclass(kw_only=True)
class StageConfig:
    """One stage of training: which parts learn, for how long, how fast. Each stage has optimizers of its own.

    train  beginnings of parameter names, e.g. [autoencoder.encoder, quantizer]; empty: everything
    """

    train: list[str] = field(default_factory=list)
    epochs: int | None = None
    steps: int | None = None
    learning_rate: float | None = None


@dataclass(kw_only=True)
class NetworkConfig:
    """Settings of one network's optimizer; what is left out is as for all networks."""

    learning_rate: float | None = None
    betas: tuple[float, ...] | None = None
    weight_decay: float | None = None
    gradient_clip: float | None = None


@dataclass(frozen=True)
class OptimizerSettings:
    """What one network's optimizer is made with."""

    learning_rate: float
    betas: tuple[float, ...]
    weight_decay: float
    gradient_clip: float | None


@dataclass(kw_only=True)
class TrainingConfig:
    """epochs or steps    how long; give one
    schedule           of the learning rate: constant, or cosine (down to final_rate × learning_rate at the end)
    flat_share         share of each stage before the cosine begins
    warmup_steps       the learning rate rises linearly over this many steps
    networks           settings of single networks by name, e.g. {discriminator: {learning_rate: 1.0e-4}}
    accumulate         micro-batches per optimizer step; the ArcLoss contrasts tokens within a micro-batch
    gradient_clip      largest global norm of the gradient; none by default
    ema                decay of an average of the weights, which is then what is evaluated and saved; none by default
    precision          fp32, bf16 or fp16 for the networks; quantizers are float32 in all of them
    compile            torch.compile the step
    capture            the whole step as a CUDA graph, launched as one: auto (wherever that can be), always (or an error that
                       says why not), never
    device             auto (what Accelerate finds), or cpu
    evaluations        how many evaluations along the way, beside a few early ones at log-spaced steps
    evaluation_images  how many images of the test set (or of data.holdout) they use
    checkpoints        how many checkpoints are written along the way; the newest two are kept
    select             which weights are saved: last, or test-best: the lowest test MSE seen (what the released code of the
                       paper reports; it chooses on the data it is measured on, so say so when you quote it)
    stages             empty: one stage that trains everything
    init_from          a run or a saved model whose weights the training starts from; its step count starts at 0
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
    networks: dict[str, NetworkConfig] = field(default_factory=dict)
    accumulate: int = 1
    gradient_clip: float | None = None
    ema: float | None = None
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
        _check_optimizer(self, "training")
        for name, network in self.networks.items():
            _check_optimizer(network, f"training.networks.{name}")
        if self.ema is not None and not 0 < self.ema < 1:
            raise ArcvqError(f"training.ema must be between 0 and 1, got {self.ema}")
        if not 0 <= self.flat_share < 1:
            raise ArcvqError(f"training.flat_share must be from 0 to below 1, got {self.flat_share}")
        if self.seed >= 2**63:
            raise ArcvqError(f"training.seed must be below 2^63, got {self.seed}")
        if self.stages and (self.epochs is not None or self.steps is not None):
            raise ArcvqError("training: with stages, give each its own epochs or steps, not the whole")
        self.plan()  # fails early when a length is missing or doubled

    def plan(self) -> list[StageConfig]:
        """The stages, one for the whole training if none are listed; an error unless each has exactly one of epochs and steps."""
        stages = self.stages or [StageConfig(epochs=self.epochs, steps=self.steps)]
        for i, stage in enumerate(stages):
            where = f"training.stages[{i}]" if self.stages else "training"
            if (stage.epochs is None) == (stage.steps is None):
                raise ArcvqError(f"{where}: give either epochs or steps")
            if (stage.epochs or stage.steps or 0) < 1:
                raise ArcvqError(f"{where}: epochs or steps must be at least 1")
            if stage.learning_rate is not None and stage.learning_rate <= 0:
                raise ArcvqError(f"{where}.learning_rate must be positive, got {stage.learning_rate}")
        return stages

    def stage_steps(self, batches_per_epoch: int) -> list[int]:
        """How many optimizer steps each stage takes."""
        return [stage.steps or (stage.epochs or 0) * batches_per_epoch for stage in self.plan()]

    def check_networks(self, names: Collection[str]) -> None:
        """Fail if `networks` has settings of a network that is not trained."""
        for name in self.networks:
            if name not in names:
                raise ArcvqError(f"training.networks.{name}: no such network; this task trains {', '.join(names)}")

    def optimizer(self, network: str) -> OptimizerSettings:
        """The optimizer settings of one network: its own, and the general ones for what it leaves out."""
        own = self.networks.get(network, NetworkConfig())
        return OptimizerSettings(
            self.learning_rate if own.learning_rate is None else own.learning_rate,
            self.betas if own.betas is None else own.betas,
            self.weight_decay if own.weight_decay is None else own.weight_decay,
            self.gradient_clip if own.gradient_clip is None else own.gradient_clip,
        )


def _check_optimizer(config: TrainingConfig | NetworkConfig, where: str) -> None:
    for name in ("learning_rate", "gradient_clip"):
        value = getattr(config, name)
        if value is not None and value <= 0:
            raise ArcvqError(f"{where}.{name} must be positive, got {value}")
    betas = config.betas
    if betas is not None and (len(betas) != 2 or not all(0 <= beta < 1 for beta in betas)):
        raise ArcvqError(f"{where}.betas takes two numbers from 0 to below 1, got {list(betas)}")
