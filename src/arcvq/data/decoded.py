"""Sets of images that are decoded when a batch needs them: what folders and shards have in common."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from typing import Literal, Self

import torch
from torch import Tensor

from arcvq.data.augment import Window
from arcvq.data.files import Header, UnreadableImage
from arcvq.data.images import Images, InMemoryImages, Size, height_and_width, to_device
from arcvq.data.reading import raise_if_unreadable, read_in_threads
from arcvq.data.variance import cached_variance
from arcvq.errors import ArcvqError

# What happens at an image that cannot be read: an error, or another image in its place.
OnError = Literal["stop", "skip"]
# GiB of decoded images up to which a set is kept in memory, unless a caller says otherwise.
MEMORY = 1.0


class DecodedImages:
    """A set of images that threads decode when a batch needs them. A subclass says how many there are, and reads one.

    With `on_error="skip"`, the next readable image of the set stands in for one that cannot be read. That depends on the set alone,
    so batches keep their size and a resumed run sees the same images.
    """

    def __init__(
        self,
        name: str,
        *,
        channels: int,
        image_size: Size | None,
        height: int,
        width: int,
        labels: Tensor | None = None,
        class_names: list[str] | None = None,
        on_error: OnError = "stop",
        device: torch.device | str = "cpu",
    ) -> None:
        self.name = name
        self.channels = channels
        self.image_size = image_size
        self.height = height
        self.width = width
        self.labels = labels
        self.class_names = class_names
        self.on_error = on_error
        self.device = torch.device(device)
        self.skipped: dict[str, str] | None = {} if on_error == "skip" else None

    def __len__(self) -> int:
        raise NotImplementedError

    def path(self, index: int) -> Path:
        """The name of an image in errors."""
        raise NotImplementedError

    def read(self, index: int, *, whole: bool = False) -> Tensor:
        """Decode an image to uint8 (C, H, W) of `image_size`, or with `whole` what covers that size; raises UnreadableImage."""
        raise NotImplementedError

    def fingerprint(self) -> str | None:
        """A hash of the files and which of their images are in the set; None if they cannot be found."""
        raise NotImplementedError

    def decode(self, index: int, window: Window | None = None) -> Tensor:
        """Decode an image and check its size; or cut a window out of the whole of it."""
        if window is not None and self.image_size is not None:
            return window.cut(self.read(index, whole=True))
        pixels = self.read(index)
        if pixels.shape != (self.channels, self.height, self.width):
            found = f"{pixels.shape[2]}x{pixels.shape[1]}"
            raise ArcvqError(
                f"{self.path(index)} is {found}, but the others are {self.width}x{self.height}; give an image_size"
            )
        return pixels if window is None else window.cut(pixels)

    def gather(self, indices: Tensor) -> Tensor:
        """Decode the images `indices` (B,) to uint8 (B, C, H, W) on the set's device."""
        return self.fetch(indices)[0]

    def fetch(self, indices: Tensor, windows: Sequence[Window] | None = None) -> tuple[Tensor, Tensor]:
        """The images `indices` (B,) as `gather` gives them, and which images these are: others where images were skipped.

        With `windows`, one for each image, these are cut out of the whole images, whose shorter side is `image_size`.
        """
        height, width = (windows[0].side,) * 2 if windows else (self.height, self.width)
        batch = torch.empty(len(indices), self.channels, height, width, dtype=torch.uint8)
        used, unreadable = self.decode_into(batch, indices.tolist(), windows)
        if self.on_error == "stop":
            raise_if_unreadable(unreadable)
        return to_device(batch, self.device), torch.tensor(used, dtype=torch.int64)

    def decode_into(
        self, pixels: Tensor, indices: Sequence[int], windows: Sequence[Window] | None = None
    ) -> tuple[list[int], list[UnreadableImage]]:
        """Decode images into the tensor `pixels`, uint8 (B, C, H, W). Returns the images used, and the errors of unreadable ones."""
        used, unreadable = list(indices), []
        wanted = list(zip(indices, repeat(None) if windows is None else windows))
        for position, decoded in enumerate(read_in_threads(wanted, lambda each: self.decode(*each))):
            if not isinstance(decoded, UnreadableImage):
                pixels[position].copy_(decoded)
                continue
            unreadable.append(decoded)
            if self.skipped is not None:
                self.skipped[str(decoded.path)] = decoded.reason
                used[position], replacement = self._next_readable(*wanted[position])
                pixels[position].copy_(replacement)
        return used, unreadable

    def _next_readable(self, index: int, window: Window | None) -> tuple[int, Tensor]:
        """The first image after `index` that can be read; after the last comes the first."""
        assert self.skipped is not None
        for step in range(1, len(self)):
            candidate = (index + step) % len(self)
            try:
                return candidate, self.decode(candidate, window)
            except UnreadableImage as error:
                self.skipped[str(error.path)] = error.reason
        raise ArcvqError(f"{self.name}: none of the {len(self)} images can be read")

    def subset(self, indices: Sequence[int]) -> Self:
        """The images at these indices as a set of their own: none outside it stands in for one that cannot be read."""
        other = copy.copy(self)
        other.labels = None if self.labels is None else self.labels[list(indices)]
        other.skipped = None if self.skipped is None else {}
        return other

    def resized(self, size: Size) -> Self:
        """The same images, decoded to this size."""
        other = copy.copy(self)
        other.image_size, (other.height, other.width) = size, height_and_width(size)
        return other

    def without_unreadable(self) -> tuple[Self, dict[str, str]]:
        """The images that can be read, and path → reason of the others. All are decoded to find out."""
        kept, unreadable = [], {}
        for index, decoded in enumerate(read_in_threads(range(len(self)), self.decode)):
            if isinstance(decoded, UnreadableImage):
                unreadable[str(decoded.path)] = decoded.reason
            else:
                kept.append(index)
        if not kept:
            raise ArcvqError(f"{self.name}: none of the {len(self)} images can be read")
        return self.subset(kept), unreadable

    def to(self, device: torch.device | str) -> Self:
        """The same set, with batches on `device`."""
        other = copy.copy(self)
        other.device = torch.device(device)
        return other

    def pixel_variance(self) -> float:
        """Population variance of all pixels in the [-1, 1] scale, cached on disk."""
        return cached_variance(self)


def load_into_memory(images: DecodedImages, memory: float, unreadable: Sequence[UnreadableImage] = ()) -> Images:
    """The set in memory if its pixels take at most `memory` GiB, else as it is. `unreadable` are errors that are known already.

    One error names all images that cannot be read, unless they are skipped.
    """
    if len(images) * images.channels * images.height * images.width > memory * 2**30:
        if images.on_error == "stop":
            raise_if_unreadable(unreadable)
        return images
    pixels = torch.empty(len(images), images.channels, images.height, images.width, dtype=torch.uint8)
    used, undecoded = images.decode_into(pixels, range(len(images)))
    if images.on_error == "stop":
        raise_if_unreadable({error.path: error for error in [*unreadable, *undecoded]}.values())
    labels = None if images.labels is None else images.labels[used]
    return InMemoryImages(images.name, pixels, labels, images.class_names, images.skipped)


def keep_in_memory(images: Images, memory: float) -> Images:
    """The set in memory, as `load_into_memory` says; a set in memory stays as it is."""
    return load_into_memory(images, memory) if isinstance(images, DecodedImages) else images


def readable_images(images: Images, memory: float = MEMORY) -> tuple[Images, dict[str, str]]:
    """A set without the images that cannot be read, in memory if it fits, and path → reason of these."""
    if not isinstance(images, DecodedImages):
        return images, {}
    readable, unreadable = images.without_unreadable()
    return load_into_memory(readable, memory), unreadable


def common_shape(
    names: Sequence[str], headers: Sequence[Header | UnreadableImage], image_size: Size | None
) -> tuple[int, int, int]:
    """(channels, height, width) for all images; one channel only if all are grey. An error if sizes differ and no size is given."""
    read = [(name, header) for name, header in zip(names, headers) if isinstance(header, Header)]
    channels = 1 if all(header.grey for _, header in read) else 3
    if image_size is not None:
        return channels, *height_and_width(image_size)
    first, wanted = read[0]
    for name, header in read:
        if (header.width, header.height) != (wanted.width, wanted.height):
            raise ArcvqError(
                f"images differ in size ({first} is {wanted.width}x{wanted.height}, {name} is "
                f"{header.width}x{header.height}); give an image_size"
            )
    return channels, wanted.height, wanted.width
