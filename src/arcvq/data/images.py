"""Sets of equally sized 8-bit images: the interface of all sets, and the set in memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as transforms

from arcvq.data.splits import spread
from arcvq.errors import ArcvqError

# Images that are processed at a time when a function goes through a whole set.
CHUNK = 1024

# An image size: the side of a square, or (height, width).
Size = int | tuple[int, int]


def height_and_width(size: Size) -> tuple[int, int]:
    """The (height, width) of an image size, checked to be at least 1."""
    height, width = size if isinstance(size, tuple) else (size, size)
    if min(height, width) < 1:
        raise ArcvqError(f"image_size is {size}; it must be at least 1")
    return height, width


class Images(Protocol):
    """Equally sized uint8 images that are addressed by index."""

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

    @property
    def class_names(self) -> list[str] | None:
        """The name of each class, or None if there are no classes or no names."""

    @property
    def skipped(self) -> Mapping[str, str] | None:
        """The images that cannot be read and that others stand in for, so far: path → reason. None if that is an error."""

    def __len__(self) -> int: ...

    def gather(self, indices: Tensor) -> Tensor:
        """The images at int64 indices (B,), as uint8 (B, C, H, W) on the set's device."""

    def subset(self, indices: Sequence[int]) -> Self:
        """The images at these indices as a set of their own."""

    def to(self, device: torch.device | str) -> "Images":
        """The same set, with batches on `device`."""

    def pixel_variance(self) -> float:
        """Population variance of all pixels in the [-1, 1] scale."""


AnyImages = TypeVar("AnyImages", bound=Images)


@dataclass(frozen=True)
class InMemoryImages:
    """A set of images as one tensor on any device."""

    name: str
    pixels: Tensor  # uint8 (N, C, H, W)
    labels: Tensor | None = None  # int64 (N,)
    class_names: list[str] | None = None
    skipped: Mapping[str, str] | None = None

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
        """The images at int64 indices (B,), as uint8 (B, C, H, W)."""
        return self.pixels[indices.to(self.pixels.device)]

    def subset(self, indices: Sequence[int]) -> Self:
        """A copy of the images at these indices."""
        picks = list(indices)
        return replace(self, pixels=self.pixels[picks], labels=None if self.labels is None else self.labels[picks])

    def to(self, device: torch.device | str) -> "InMemoryImages":
        """A copy of the set on `device`."""
        return replace(self, pixels=self.pixels.to(device))

    def pixel_variance(self) -> float:
        """Population variance of all pixels in the [-1, 1] scale."""
        return compute_pixel_variance(self)


def compute_pixel_variance(images: Images) -> float:
    """Population variance of all pixels in the [-1, 1] scale, exact and in one pass, from a histogram of the 256 levels."""
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


def resize_images(images: InMemoryImages, size: Size) -> InMemoryImages:
    """Resize every image (antialiased bicubic) until it covers `size`, then crop the centre."""
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
    return replace(images, pixels=torch.cat(parts))


def check_limit(limit: int | None) -> None:
    """Raise if the number of images to load is below 1; None means all."""
    if limit is not None and limit < 1:
        raise ArcvqError(f"limit is {limit}; it must be at least 1, or left out for the whole set")


def sorted_by_class(images: Images) -> bool:
    """Whether neighbours in a set may be of one class: of files, they lie in the order of their names."""
    return images.name.startswith(("folder:", "shards:", "photos"))


def first_images(images: AnyImages, limit: int | None) -> AnyImages:
    """The first `limit` images of the set, or all; of files, images spread evenly over them."""
    check_limit(limit)
    if limit is None or limit >= len(images):
        return images
    return images.subset(spread(len(images), limit) if sorted_by_class(images) else range(limit))


def hold_out(images: AnyImages, count: int) -> tuple[AnyImages, AnyImages]:
    """Split off `count` images: (the others, these). They are the last ones; of files, images spread evenly over them."""
    length = len(images)
    if not 1 <= count < length:
        raise ArcvqError(
            f"data.holdout is {count}, but {images.name} has {length} training images; it must be from 1 to {length - 1}"
        )
    held = spread(length, count) if sorted_by_class(images) else range(length - count, length)
    chosen = set(held)
    return images.subset([index for index in range(length) if index not in chosen]), images.subset(held)


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """A tensor of the host on the device. The host does not wait for a GPU's copy."""
    pinned = tensor.pin_memory() if torch.device(device).type == "cuda" else tensor
    return pinned.to(device, non_blocking=True)
