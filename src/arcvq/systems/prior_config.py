"""The configuration of a run that trains a prior over a finished tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import torch

from arcvq.config import Choice
from arcvq.data import Images, InMemoryImages
from arcvq.data.source import Source
from arcvq.data.value_source import ValueSource, count_classes
from arcvq.errors import ArcvqError
from arcvq.priors import PRIORS, GptConfig, Prior, PriorConfig, make_grid
from arcvq.progress import progress_bar
from arcvq.systems.config import RunConfig, with_facts
from arcvq.tasks.prior import PriorTask, check_origin, check_soft_targets
from arcvq.tokenizers import EMBEDDED, Tokenizer
from arcvq.tokenizers.value_cache import Encoded, Kind, Variants, cached_values, encode_all


@dataclass(kw_only=True)
class PriorRunConfig(RunConfig):
    """A run that trains a prior. Every image is encoded once, before the training, in all its variants.

    tokenizer    the run, or the saved tokenizer, whose tokens or latents the prior is over
    prior        the kind of prior and its settings
    crops        how many random crops of each image are encoded, with data.crop
    conditional  learn the images' classes, where there are any
    """

    task: str = "prior"
    tokenizer: str | None = None
    prior: Annotated[PriorConfig, Choice(PRIORS, "gpt")] = field(default_factory=GptConfig)
    crops: int = 1
    conditional: bool = True

    def __post_init__(self) -> None:
        if self.crops < 1 or (self.crops > 1 and self.data.crop is None):
            raise ArcvqError(f"crops must be at least 1, and above 1 needs data.crop, got {self.crops}")
        if self.tokenizer is not None and self.tokenizer not in EMBEDDED and Path(self.tokenizer).expanduser().exists():
            # Absolute, so that the run goes on from anywhere.
            self.tokenizer = str(Path(self.tokenizer).expanduser().absolute())

    def load_tokenizer(self, device: str | torch.device = "cpu") -> Tokenizer:
        """The tokenizer, on this device."""
        if self.tokenizer is None:
            raise ArcvqError("a prior is trained on a finished tokenizer: name its run with --tokenizer RUN")
        return Tokenizer.from_pretrained(self.tokenizer, device=device)

    def load(self) -> tuple[ValueSource, ValueSource]:
        """The tokens, or latents, of the training images and of the evaluation images."""
        return self._load(self._encode)

    def load_for_run(self, out: Path) -> tuple[ValueSource, ValueSource]:
        """As `load`; before the work, an error if the run in the folder `out` began with another tokenizer or other classes."""
        return self._load(self._encode, out)

    def load_for_dry_run(self) -> tuple[ValueSource, ValueSource]:
        """As many values as `load` gives, all of them 0: nothing is encoded."""
        return self._load(self._blank)

    def _load(
        self, make: Callable[[Tokenizer, Images, Variants, Kind], Encoded], run: Path | None = None
    ) -> tuple[ValueSource, ValueSource]:
        on_gpu = self.training.device == "auto" and torch.cuda.is_available()
        tokenizer = self.load_tokenizer("cuda" if on_gpu else "cpu")
        tokenizer.quantizer.require_codebook()
        size = None
        if self.data.crop is None and tokenizer.image_size is not None:
            height, width = tokenizer.image_size
            size = height if height == width else None
        train, evaluation = self.data.load(self.training.evaluation_images, size)
        if train.channels != tokenizer.channels:
            raise ArcvqError(
                f"{self.data.name} has {train.channels} channels but the tokenizer takes {tokenizer.channels}"
            )
        tokenizer.check_size(*train.image_size)
        variants = Variants(self.data.flip, self.data.crop, self.crops)
        names = train.images.class_names
        classes = count_classes(train.images.labels if self.conditional else None, names)
        if self.prior.soft_temperature is not None:
            check_soft_targets(tokenizer)
        with torch.device("meta"):  # what does not fit is refused before all images are encoded
            self._build_prior(tokenizer, train.image_size, classes, train.batches_per_epoch)
        if run is not None:
            check_origin(run, tokenizer, _matching_class_names(names, classes))

        def source(images: Images, variants: Variants, name: str, kind: Kind) -> ValueSource:
            encoded = make(tokenizer, images, variants, kind)
            labels = images.labels[encoded.used] if self.conditional and images.labels is not None else None
            skipped = None if images.skipped is None else {**images.skipped, **encoded.skipped}
            return ValueSource(encoded.values, labels, self.data.batch_size, name, images.class_names, skipped)

        return (
            source(train.images, variants, train.name, self.training_values),
            source(evaluation.images, Variants(), evaluation.name, self.prior_class.models),
        )

    @property
    def training_values(self) -> Kind:
        """What the prior is trained on; with soft targets latents, for which tokens are drawn in each step."""
        return self.prior_class.models if self.prior.soft_temperature is None else "latents"

    def _encode(self, tokenizer: Tokenizer, images: Images, variants: Variants, kind: Kind) -> Encoded:
        """What the tokenizer makes of these images."""
        with progress_bar("encoding") as progress:
            return cached_values(tokenizer, images, kind, variants, lambda done, all: progress("images", done, all))

    def _blank(self, tokenizer: Tokenizer, images: Images, variants: Variants, kind: Kind) -> Encoded:
        """Values of the shape and type that `_encode` gives, all of them those of a grey image."""
        side = variants.crop
        grey = torch.full((1, images.channels, side or images.height, side or images.width), 128, dtype=torch.uint8)
        value = encode_all(tokenizer, InMemoryImages("grey", grey), kind, Variants()).values
        values = value.expand(len(variants), len(images), *value.shape[2:])
        return Encoded(values, torch.arange(len(images)), {})

    @property
    def prior_class(self) -> type[Prior]:
        """The class of the prior that is trained."""
        return PRIORS[PRIORS.kind_of(self.prior)]

    def build(self, source: Source) -> PriorTask:
        """The prior and its task, untrained."""
        assert isinstance(source, ValueSource)
        tokenizer = self.load_tokenizer()
        rows, columns = self._positions(source)
        image_size = (rows * tokenizer.downsampling, columns * tokenizer.downsampling)
        return PriorTask(
            self._build_prior(tokenizer, image_size, source.classes, source.batches_per_epoch),
            tokenizer,
            class_names=_matching_class_names(source.class_names, source.classes),
            system=self.system,
            seed=self.training.seed,
        )

    def _build_prior(
        self, tokenizer: Tokenizer, image_size: tuple[int, int], classes: int, batches_per_epoch: int
    ) -> Prior:
        """The prior, untrained, over what the tokenizer makes of such images."""
        total = sum(self.training.stage_steps(batches_per_epoch))
        return PRIORS.build(with_facts(self.prior, {"total_steps": total}), make_grid(tokenizer, image_size, classes))

    def _positions(self, source: ValueSource) -> tuple[int, int]:
        """Rows and columns of the values."""
        shape = source.values.shape[2:]
        return (shape[0], shape[1]) if self.training_values == "tokens" else (shape[1], shape[2])


def _matching_class_names(names: Sequence[str] | None, classes: int) -> list[str] | None:
    """The class names; None unless there is exactly one for each class."""
    return list(names) if names is not None and len(names) == classes else None
