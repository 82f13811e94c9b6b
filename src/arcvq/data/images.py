"""A set of equally sized 8-bit images: what every loader gives, and the version that lives in memory."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as transforms

from arcvq.errors import ArcvqError

# Images per step wherever a whole set is walked through.
CHUNK = 1024

# Of an image: the side of a square, or (height, width).
Size = int | tuple[int, int]


def height_and_width(size: Size) -> tuple[int, int]:
    height, width = size if isinstance(size, tuple) else (size, size)
    if min(height, width) < 1:
        raise ArcvqError(f"image_size is {size}; it must be at least 1")
    return height, width


class Images(Protocol):
    """Equally sized images, addressed by index. Pixels stay uint8 until a model wants floats."""

    @property
    def name(self) -> str: ...
    @property
    def channels(self) -> int: ...
    @property
    def height(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def labels(self) -> Tensor | None:
        """One class per image, int64 (N,) on the CPU, or None."""

    def __len__(self) -> int: ...

    def gather(self, indices: Tensor) -> Tensor:
        """uint8 (B, C, H, W) on the set's device, for int64 indices (B,)."""

    def to(self, device: torch.device | str) -> "Images":
        """The same set, giving its batches on `device`."""

    def pixel_variance(self) -> float:
        """Population variance of all pixels, in the [-1, 1] scale."""


@dataclass(frozen=True)
class InMemoryImages:
    """The whole set as one tensor, on whichever device."""

    name: str
    pixels: Tensor  # uint8 (N, C, H, W)
    labels: Tensor | None = None  # int64 (N,)

    def __post_init__(self) -> None:
        if self.pixels.dtype != torch.uint8 or self.pixels.ndim != 4:
            raise ArcvqError(
                f"images are uint8 (N, C, H, W), but {self.name} has {self.pixels.dtype} {tuple(self.pixels.shape)}"
            )
        if self.labels is not None and len(self.labels) != len(self.pixels):
            raise ArcvqError(f"{self.name} has {len(self.pixels)} images but {len(self.labels)} labels")

    def __len__(self) -> int:
        return self.pixels.shape[0]

    @property
    def channels(self) -> int:
        return self.pixels.shape[1]

    @property
    def height(self) -> int:
        return self.pixels.shape[2]

    @property
    def width(self) -> int:
        return self.pixels.shape[3]

    @property
    def device(self) -> torch.device:
        return self.pixels.device

    def gather(self, indices: Tensor) -> Tensor:
        return self.pixels[indices.to(self.pixels.device)]

    def to(self, device: torch.device | str) -> "InMemoryImages":
        return InMemoryImages(self.name, self.pixels.to(device), self.labels)

    def pixel_variance(self) -> float:
        return variance_of(self)


def variance_of(images: Images) -> float:
    """Exact and in one pass: 256 counters hold all that the variance of 8-bit pixels depends on."""
    if len(images) == 0:
        raise ArcvqError(f"{images.name} has no images, so its pixels have no variance")
    histogram = torch.zeros(256, dtype=torch.int64)
    for first in range(0, len(images), CHUNK):
        batch = images.gather(torch.arange(first, min(first + CHUNK, len(images))))
        histogram += torch.bincount(batch.flatten(), minlength=256).cpu()
    weights = histogram.double() / histogram.sum()
    levels = torch.arange(256, dtype=torch.float64) / 127.5 - 1.0
    mean = (weights * levels).sum()
    return float((weights * (levels - mean).square()).sum())


def resized(images: InMemoryImages, size: Size) -> InMemoryImages:
    """The set at another size: each image is resized (antialiased bicubic) until it covers that size, and the centre is kept."""
    height, width = height_and_width(size)
    if (images.height, images.width) == (height, width):
        return images
    if images.height * width <= images.width * height:
        covering = [height, int(height * images.width / images.height)]
    else:
        covering = [int(width * images.height / images.width), width]
    parts = [
        transforms.center_crop(
            transforms.resize(part, covering, interpolation=InterpolationMode.BICUBIC, antialias=True), [height, width]
        )
        for part in images.pixels.split(CHUNK)
    ]
    return InMemoryImages(images.name, torch.cat(parts), images.labels)


def check_limit(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise ArcvqError(f"limit is {limit}; it must be at least 1, or left out for the whole set")


def first_images(images: InMemoryImages, limit: int | None) -> InMemoryImages:
    """The first `limit` images."""
    check_limit(limit)
    if limit is None or limit >= len(images):
        return images
    labels = None if images.labels is None else images.labels[:limit].clone()
    return InMemoryImages(images.name, images.pixels[:limit].clone(), labels)


def hold_out(images: Images, count: int) -> tuple[InMemoryImages, InMemoryImages]:
    """All but the last `count` images, and those. The published sets lie in no order; a folder lies in that of its classes."""
    if not isinstance(images, InMemoryImages) or images.name.startswith("folder:"):
        raise ArcvqError(
            f"{images.name}: data.holdout is for published sets; a folder can have a folder test of its own"
        )
    if not 1 <= count < len(images):
        raise ArcvqError(f"data.holdout is {count}, but {images.name} has {len(images)} training images: leave some")
    first, labels = len(images) - count, images.labels
    return (
        InMemoryImages(images.name, images.pixels[:first], None if labels is None else labels[:first]),
        InMemoryImages(images.name, images.pixels[first:], None if labels is None else labels[first:]),
    )
