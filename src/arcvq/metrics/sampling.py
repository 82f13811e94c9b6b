"""How images are generated for a measurement and what they are compared with: the protocol, and the classes to generate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from arcvq.data.batches import epoch_order
from arcvq.data.pixels import Rounding
from arcvq.errors import ArcvqError
from arcvq.metrics.distributions import SEED, SPLITS, SUBSET_SIZE, SUBSETS
from arcvq.metrics.fid import Interpolation
from arcvq.metrics.protocols import hash_fields

Setting = bool | int | float | str | None
Split = Literal["train", "test", "holdout"]
Balance = Literal["balanced", "none"]
CHOICES: dict[str, tuple[str, ...]] = {
    "split": get_args(Split),
    "classes": get_args(Balance),
    "rounding": get_args(Rounding),
    "fid_interpolation": get_args(Interpolation),
    "inception": ("inception-2015-12-05",),
    "vgg": ("vgg16-fc2-relu",),
}
# FID's bias falls with the number of images; below this many it hides what most papers compare.
FEW_IMAGES = 10_000


@dataclass(frozen=True)
class GenerationProtocol:
    """All choices that change the measured number of a generator, down to the seed of its samples."""

    # how many images are generated
    images: int
    # the data set they are compared with, as it is loaded by name, and its split and size
    data: str
    split: Split
    reference_images: int
    # the classes that are generated: equally many of each, or without a class
    classes: Balance
    # image i draws its noise from (seed, i), so that no two images have the same
    seed: int
    # the sampler's settings by name: steps, guidance, temperature, top_k, top_p, order, eta, ...
    sampler: Mapping[str, Setting] = field(default_factory=dict)
    # how generated floats are rounded to 8 bits
    rounding: Rounding = "round"
    # side that Pillow resizes images to before the network's own resize, and that resize, as in Protocol
    fid_resize: int | None = None
    fid_interpolation: Interpolation = "tensorflow"
    # the networks: of all metrics, and of the second precision and recall
    inception: str = "inception-2015-12-05"
    vgg: str = "vgg16-fc2-relu"
    kid_subsets: int = SUBSETS
    kid_subset_size: int = SUBSET_SIZE
    inception_splits: int = SPLITS
    # k of precision and recall
    neighbours: int = 3
    # KID, precision and recall compare with at most this number of reference images, drawn at random; FID always with all
    reference_features: int = 50_000
    # seed of KID's subsets, the Inception Score's order and the drawn reference images
    metric_seed: int = SEED
    # increased when the code is corrected so that numbers change
    revision: int = 1

    def __post_init__(self) -> None:
        lowest = {"seed": 0, "metric_seed": 0, "kid_subset_size": 2}
        for name, value in vars(self).items():
            if isinstance(value, int) and value < lowest.get(name, 1):
                raise ArcvqError(f"{name} is {value}; it must be at least {lowest.get(name, 1)}")
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ArcvqError(f"unknown {name} {getattr(self, name)!r}; choose one of {', '.join(choices)}")
        object.__setattr__(self, "sampler", {name: _plain(name, self.sampler[name]) for name in sorted(self.sampler)})

    @property
    def hash(self) -> str:
        """A hash of all fields, 12 hex digits: numbers with the same hash were measured in the same way."""
        return hash_fields(asdict(self))

    @property
    def few_images(self) -> bool:
        """Whether so few images are compared that FID is mostly bias."""
        return min(self.images, self.reference_images) < FEW_IMAGES

    @property
    def line(self) -> str:
        """The protocol as one line, to stand beside its numbers."""
        sampler = ", ".join(f"{name} {value}" for name, value in self.sampler.items())
        classes = {"balanced": "balanced classes", "none": "no classes"}
        resize = f"{self.fid_resize}, then 299" if self.fid_resize else "299"
        parts = [
            f"{self.images:,} images ({classes[self.classes]}, seed {self.seed})",
            f"against {self.reference_images:,} of {self.data} {self.split}",
            f"sampler: {sampler or 'none stated'}",
            f"8 bits by {self.rounding}",
            f"{self.inception} at {resize} ({self.fid_interpolation})",
            f"KID {self.kid_subsets} x {self.kid_subset_size}",
            f"precision and recall k = {self.neighbours}",
            f"protocol {self.hash}",
        ]
        if self.few_images:
            parts.insert(2, f"fewer than {FEW_IMAGES:,} on a side, so FID is biased upwards")
        return "; ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """All fields, the hash and the line, as plain values for a results file."""
        return {**asdict(self), "hash": self.hash, "line": self.line}


def _plain(name: str, value: Setting) -> Setting:
    """A setting as JSON has it; 1.0 becomes 1, so that both are one protocol."""
    if value is not None and not isinstance(value, bool | int | float | str):
        raise ArcvqError(
            f"the sampler's {name} is a {type(value).__name__}; a protocol takes numbers, words, true, false and null"
        )
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ArcvqError(f"the sampler's {name} is {value}; a protocol takes finite numbers")
        return int(value) if value.is_integer() else value
    return value


def balanced_labels(count: int, classes: int, seed: int) -> Tensor:
    """The class of each of `count` images to generate, int64 (count,): equally many of each class, in random order.

    If they cannot be equally many, the first classes get one more. Image i draws its noise from (seed, i), i from 0 to count − 1,
    so that no noise is used twice.
    """
    if min(count, classes) < 1:
        raise ArcvqError(f"balanced classes need at least 1 image and 1 class, but got {count} and {classes}")
    return (torch.arange(count) % classes)[epoch_order(count, seed, 0)]
