"""The configuration of a run: which data, which task, how long. A YAML file fills it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch

from arcvq.config import Choice
from arcvq.data import Augmentation, ImageSource, load_sources
from arcvq.data.decoded import MEMORY, OnError
from arcvq.data.load import FILE_SETS
from arcvq.data.source import Source
from arcvq.errors import ArcvqError
from arcvq.nets import AUTOENCODERS, DISCRIMINATORS, AutoencoderConfig, SmallConfig, StackedConfig
from arcvq.objectives import (
    OBJECTIVES,
    AdversarialConfig,
    Discriminator,
    Objective,
    PerceptualConfig,
    ReconstructionConfig,
)
from arcvq.quantizers import QUANTIZERS, HVQConfig, QuantizerConfig, VQConfig
from arcvq.tasks import AdversarialTask, MasksConfig, StackedTask, Task, TokenizerTask, first_step
from arcvq.tokenizers import StackedTokenizer, Tokenizer, build_tokenizer
from arcvq.training import StageConfig, TrainingConfig


@dataclass(kw_only=True)
class DataConfig:
    """name           sample, mnist, fashion-mnist, cifar10, photos, folder:PATH or shards:PATH
    batch_size     images per optimizer step, over all processes and micro-batches
    image_size     the shorter side is resized to it and the centre cut out
    root           where data sets lie or are downloaded to; default: $ARCVQ_DATA, else a cache folder
    limit          train on only the first images, this many
    holdout        keep this many training images (the last ones; of files, images spread evenly over them) out of training and
                   evaluate on them, not on the test set
    holdout_every  folders and shards without a test split: every n-th image is a test image; default: about every 20th, by
                   a hash of its name
    on_error       what happens at an image that cannot be read. stop: an error; skip: the next one stands in for it
    memory         a set of files whose pixels take at most this many GiB is kept in memory, and on a GPU in its memory; others are
                   decoded for each batch
    flip           mirror training images left and right, every other time
    crop           train on squares of this side, cut out at random places; of files with an image_size: from the whole image, whose
                   shorter side is resized to it
    """

    name: str = "sample"
    batch_size: int = 1024
    image_size: int | None = None
    root: str | None = None
    limit: int | None = None
    holdout: int | None = None
    holdout_every: int | None = None
    on_error: OnError = "stop"
    memory: float = MEMORY
    flip: bool = False
    crop: int | None = None

    def __post_init__(self) -> None:
        kind, colon, path = self.name.partition(":")
        if colon and kind in FILE_SETS and path:
            # Absolute, so that the run can be evaluated from anywhere.
            self.name = f"{kind}:{Path(path).expanduser().absolute()}"
        if self.root is not None:
            self.root = str(Path(self.root).expanduser().absolute())
        for name in ("batch_size", "limit", "holdout", "crop"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ArcvqError(f"data.{name} must be at least 1, got {getattr(self, name)}")
        if self.holdout_every is not None and self.holdout_every < 2:
            raise ArcvqError(f"data.holdout_every must be at least 2, got {self.holdout_every}")
        if not 0 <= self.memory < math.inf:
            raise ArcvqError(f"data.memory must be a number of GiB from 0, got {self.memory}")

    def load(self, evaluation_images: int, image_size: int | None = None) -> tuple[ImageSource, ImageSource]:
        """The image sources of training and evaluation. `image_size` is used where the setting is left out."""
        return load_sources(
            self.name,
            batch_size=self.batch_size,
            root=Path(self.root) if self.root else None,
            image_size=self.image_size or image_size,
            limit=self.limit,
            holdout=self.holdout,
            evaluation_images=evaluation_images,
            augmentation=self.augmentation(),
            holdout_every=self.holdout_every,
            on_error=self.on_error,
            memory=self.memory,
        )

    def augmentation(self) -> Augmentation | None:
        """The flips and crops, or None if there are none."""
        return Augmentation(self.flip, self.crop) if self.flip or self.crop else None


@dataclass(kw_only=True)
class RunConfig:
    """What every run has. A task of your own derives from it, adds its sections, and overrides `load` and `build`.

    task    what is trained: tokenizer, stacked, or a registered one
    system  the row of the tables whose defaults and citation it takes
    name    what tables call this configuration; the preset's name, or the system's
    """

    task: str
    system: str | None = None
    name: str | None = None
    data: DataConfig = field(default_factory=DataConfig)
    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(epochs=500))

    @property
    def title(self) -> str:
        """What a progress bar calls the run: name, system or task."""
        return self.name or self.system or self.task

    def load(self) -> tuple[Source, Source]:
        """The source to train on and the one to evaluate on."""
        raise NotImplementedError

    def load_for_run(self, out: Path) -> tuple[Source, Source]:
        """As `load`, and an error if the run in the folder `out` did not begin with the same."""
        return self.load()

    def load_for_dry_run(self) -> tuple[Source, Source]:
        """As `load`, without work that is as large as the data set: a dry run needs only some batches."""
        return self.load()

    def build(self, source: Source) -> Task:
        """The task, untrained, for this source. The random generator is seeded when it is called."""
        raise NotImplementedError


@dataclass(kw_only=True)
class TokenizerConfig(RunConfig):
    """A run that trains a tokenizer.

    adversarial       a discriminator, its losses and their weights; none by default
    continuous_first  steps at the start without the quantizer: the decoder gets the latents themselves; below 1: a share of the
                      whole training
    decoder_last      the share of the training, at its end, in which the decoder alone learns: a second stage. None by default; with
                      training.stages, these count
    masks             of defective regions in the training images, for the autoencoder dfvqgan; none by default
    """

    task: str = "tokenizer"
    autoencoder: Annotated[AutoencoderConfig, Choice(AUTOENCODERS, "small")] = field(default_factory=SmallConfig)
    quantizer: Annotated[QuantizerConfig, Choice(QUANTIZERS, "vq")] = field(default_factory=VQConfig)
    objective: Annotated[ReconstructionConfig | PerceptualConfig, Choice(OBJECTIVES, "reconstruction")] = field(
        default_factory=ReconstructionConfig
    )
    adversarial: AdversarialConfig | None = None
    continuous_first: float = 0.0
    decoder_last: float | None = None
    masks: MasksConfig | None = None

    def __post_init__(self) -> None:
        if isinstance(self.autoencoder, StackedConfig) and not isinstance(self, StackedTokenizerConfig):
            raise ArcvqError("the autoencoder stacked is trained level by level: say `task: stacked`")
        if self.continuous_first < 0:
            raise ArcvqError(f"continuous_first must not be negative, got {self.continuous_first}")
        if self.continuous_first and self.training.select == "test-best":
            raise ArcvqError(
                "continuous_first with training.select test-best would keep a model from before its codes were trained, which has "
                "the lowest error: set training.select to last"
            )
        if self.decoder_last is not None:
            if not 0 < self.decoder_last < 1:
                raise ArcvqError(f"decoder_last is a share, above 0 and below 1, got {self.decoder_last}")
            if not self.training.stages:
                self.training = with_last_stage(self.training, ["autoencoder.decoder"], self.decoder_last)
        if self.adversarial is not None and self.training.compile:
            raise ArcvqError(
                "adversarial takes several gradients through one forward pass, which torch.compile does not allow: set "
                "training.compile to false"
            )
        if self.adversarial is not None and self.adversarial.adaptive:
            if self.training.accumulate > 1:
                raise ArcvqError(
                    "adversarial.adaptive needs the gradients of the whole batch: set training.accumulate to 1, or adaptive to false"
                )
            if self.training.precision == "fp16":
                raise ArcvqError(
                    "adversarial.adaptive compares gradients, which fp16 rounds to 0: set precision to bf16"
                )

    def load(self) -> tuple[ImageSource, ImageSource]:
        """The image sources of training and evaluation."""
        return self.data.load(self.training.evaluation_images)

    def build(self, source: Source) -> TokenizerTask:
        """The tokenizer and its task, untrained."""
        assert isinstance(source, ImageSource)
        steps = self.training.stage_steps(source.batches_per_epoch)
        tokenizer = self.build_tokenizer(source.channels, source.image_size, sum(steps))
        tokenizer.check_size(*source.image_size)
        objective = OBJECTIVES.build(self.objective, source.pixel_variance)
        task = self.make_task(tokenizer, objective, steps)
        task.init_images = source.images
        if isinstance(task, AdversarialTask):
            task.discriminator.check_size(*source.image_size)  # now: it may join only after thousands of steps
        return task

    def make_task(self, tokenizer: Tokenizer, objective: Objective, steps: Sequence[int]) -> TokenizerTask:
        """The task that trains this tokenizer; `steps` are those of each stage."""
        parts = [stage.train for stage in self.training.plan()]
        options: dict[str, Any] = {
            "stages": list(zip(steps, parts)),
            "seed": self.training.seed,
            "continuous_steps": first_step(self.continuous_first, sum(steps)),
            "masks": self.masks,
            "autocast": torch.bfloat16 if self.training.precision == "bf16" else None,
        }
        if options["continuous_steps"] >= sum(steps) and self.continuous_first:
            raise ArcvqError(f"continuous_first leaves no step of {sum(steps)} to the quantizer: make it smaller")
        if options["continuous_steps"] and self.training.ema is not None and tokenizer.quantizer.inits_from_latents:
            raise ArcvqError(
                "continuous_first with training.ema needs codes that do not start from latents, because the average would "
                "keep the old ones: leave out one of the two, or choose another quantizer.init"
            )
        if self.adversarial is None:
            return TokenizerTask(tokenizer, objective, **options)
        network = DISCRIMINATORS.build(self.adversarial.discriminator, tokenizer.channels)
        return AdversarialTask(
            tokenizer,
            objective,
            Discriminator(network),
            self.adversarial,
            begins=first_step(self.adversarial.start, sum(steps)),
            **options,
        )

    def build_tokenizer(self, channels: int, image_size: tuple[int, int], total_steps: int) -> Tokenizer:
        """A fresh tokenizer for such images; the quantizer learns what it wants to know of them and of the run's length."""
        if self.quantizer.channel_last:
            raise ArcvqError("quantizer.channel_last: a tokenizer's latents have their channels first; leave it out")
        quantizer = with_facts(self.quantizer, self.facts(channels, image_size, total_steps))
        return build_tokenizer(channels, self.autoencoder, quantizer, image_size=image_size, system=self.system)

    def facts(self, channels: int, image_size: tuple[int, int], total_steps: int) -> dict[str, int]:
        """What a quantizer may leave open, because it depends on the images and the run's length."""
        down = self.autoencoder.downsampling
        return {
            "total_steps": total_steps - first_step(self.continuous_first, total_steps),
            "positions": (image_size[0] // down) * (image_size[1] // down),
            "elements": channels * down**2,  # behind one position
        }


@dataclass(kw_only=True)
class StackedTokenizerConfig(TokenizerConfig):
    """A run that trains a stack of autoencoders. The length of the training is divided evenly among the levels, a stage each."""

    task: str = "stacked"
    autoencoder: Annotated[AutoencoderConfig, Choice(AUTOENCODERS, "stacked")] = field(default_factory=StackedConfig)
    quantizer: Annotated[QuantizerConfig, Choice(QUANTIZERS, "hvq")] = field(default_factory=HVQConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.adversarial, self.decoder_last, self.masks) != (None, None, None) or self.continuous_first:
            raise ArcvqError(
                "the task stacked has no adversarial, continuous_first, decoder_last or masks: leave them out"
            )
        if not isinstance(self.autoencoder, StackedConfig) or not isinstance(self.quantizer, HVQConfig):
            raise ArcvqError("the task stacked needs the autoencoder stacked and the quantizer hvq")
        if not self.training.stages:
            (whole,) = self.training.plan()
            levels = self.autoencoder.layers
            stages = [
                StageConfig(epochs=_share(whole.epochs, i, levels), steps=_share(whole.steps, i, levels))
                for i in range(levels)
            ]
            self.training = dataclasses.replace(self.training, epochs=None, steps=None, stages=stages)

    def make_task(self, tokenizer: Tokenizer, objective: Objective, steps: Sequence[int]) -> TokenizerTask:
        """The task that trains this tokenizer; `steps` are those of each stage."""
        assert isinstance(tokenizer, StackedTokenizer)
        parts = [stage.train for stage in self.training.plan()]
        return StackedTask(tokenizer, objective, stages=list(zip(steps, parts)), seed=self.training.seed)

    def facts(self, channels: int, image_size: tuple[int, int], total_steps: int) -> dict[str, int]:
        """Each level's quantizer has a length of its own, which the task sets."""
        facts = super().facts(channels, image_size, total_steps)
        del facts["total_steps"]
        return facts


def with_last_stage(training: TrainingConfig, parts: list[str], share: float) -> TrainingConfig:
    """A training in one stage, divided: everything learns, and in the last `share` of it these parts alone."""
    (whole,) = training.plan()
    length = whole.epochs or whole.steps or 0
    last = round(share * length)
    if not 0 < last < length:
        unit = "epochs" if whole.epochs else "steps"
        raise ArcvqError(f"decoder_last: {length} {unit} are too few for a last stage of {share} of them: train longer")
    stages = [
        StageConfig(train=trained, epochs=each if whole.epochs else None, steps=None if whole.epochs else each)
        for trained, each in (([], length - last), (parts, last))
    ]
    return dataclasses.replace(training, epochs=None, steps=None, stages=stages)


def _share(length: int | None, index: int, parts: int) -> int | None:
    """Part `index` of a length divided into whole numbers."""
    if length is None:
        return None
    if length < parts:
        raise ArcvqError(f"training: {length} is too short for {parts} levels, which are trained one after another")
    return length * (index + 1) // parts - length * index // parts


def with_facts(config: Any, facts: Mapping[str, int]) -> Any:
    """The configuration with what it leaves open (None) filled in, where it has such a field."""
    known = {name: value for name, value in facts.items() if getattr(config, name, 0) is None}
    return dataclasses.replace(config, **known)
