"""Reads image files for a tokenizer, in batches of one size: fitted to a size, or each at its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from math import ceil
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from arcvq.data import read_image, to_unit
from arcvq.data.files import Header, UnreadableImage, image_header
from arcvq.data.images import Size, height_and_width, to_device
from arcvq.data.reading import prefetch, raise_if_unreadable, read_in_threads
from arcvq.errors import ArcvqError
from arcvq.tokenizers.tiles import Tile, TileGrid, as_tile
from arcvq.tokenizers.token_file import HeightWidth
from arcvq.tokenizers.tokenizer import Tokenizer

# `original` keeps each image's size; None is the tokenizer's own size, and `original` if it has none.
FileSize = Size | Literal["original"] | None
# Called with the number of images done and in all.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ImageBatch:
    """Images of one size, as floats (B, C, H, W) on the tokenizer's device.

    size  height and width of the images without their padding; None if they were fitted to a size
    """

    names: list[str]
    images: Tensor
    size: HeightWidth | None


@dataclass(frozen=True)
class FileReader:
    """How image files become batches for a tokenizer: their size, and how many go through it at a time."""

    tokenizer: Tokenizer
    size: HeightWidth | None  # that they are fitted to; None: their own
    tile: Tile | None
    batch_size: int | None

    @classmethod
    def of(cls, tokenizer: Tokenizer, size: FileSize, tile: int | Tile | None, batch_size: int | None) -> FileReader:
        """A reader of files fitted to `size`, after checking that the tokenizer takes it."""
        tile = None if tile is None else as_tile(tile)
        fitted = tokenizer.image_size if size is None else None if size == "original" else height_and_width(size)
        if fitted is not None:
            tokenizer.check_size(*fitted, tile=tile)
        elif tile is not None:
            tile.in_positions(tokenizer.downsampling)
        elif tokenizer.autoencoder.fixed_size and tokenizer.image_size is not None:
            height, width = tokenizer.image_size
            raise ArcvqError(f"this tokenizer takes images of {height}×{width} only: leave --size out, or give --tile")
        return cls(tokenizer, fitted, tile, batch_size)

    def read(self, path: Path) -> Tensor:
        """An image, uint8 (C, H, W), fitted to the size if there is one."""
        return read_image(path, self.tokenizer.channels, self.size)

    def parts(self, paths: dict[str, Path]) -> Iterator[list[str]]:
        """Yield the names of images that are read together: neighbours of one size, as many as go through at a time."""
        names = list(paths)
        if self.size is not None:
            limit = images_at_a_time(self.tokenizer, self.size, self.tile, self.batch_size)
            yield from (names[start : start + limit] for start in range(0, len(names), limit))
            return
        headers = zip(names, read_in_threads([paths[name] for name in names], image_header))
        for size, group in groupby(headers, key=lambda item: own_size(item[1])):
            limit = 1
            if size is not None:
                size = padded_size(size, self.tokenizer.downsampling)
                limit = images_at_a_time(self.tokenizer, size, self.tile, self.batch_size)
            part: list[str] = []
            for name, _ in group:
                part.append(name)
                if len(part) == limit:
                    yield part
                    part = []
            if part:
                yield part

    def batch(self, names: list[str], pixels: list[Tensor]) -> ImageBatch:
        """Images of one size as a batch on the tokenizer's device, padded if they keep their own size."""
        stacked, device = torch.stack(pixels), self.tokenizer.device
        size = None if self.size is not None else (stacked.shape[2], stacked.shape[3])
        if size is not None:
            stacked = pad_by_reflection(stacked, *padded_size(size, self.tokenizer.downsampling))
        return ImageBatch(names, to_unit(to_device(stacked, device)), size)

    def batches(
        self, paths: dict[str, Path], skipped: dict[str, str] | None, progress: Progress | None
    ) -> Iterator[ImageBatch]:
        """Yield all images in order; threads read the next part ahead.

        An unreadable image is an error. If `skipped` is given, it is skipped, and its name and the reason are added there.
        """

        def read(part: list[str]) -> tuple[list[str], list[Tensor | UnreadableImage]]:
            return part, list(read_in_threads([paths[name] for name in part], self.read))

        done = any_read = 0
        for part, results in prefetch(read, self.parts(paths)):
            if skipped is None:
                raise_if_unreadable(results, ", or give --on-error skip")
            else:
                skipped |= {name: each.reason for name, each in zip(part, results) if isinstance(each, UnreadableImage)}
            readable = [(name, each) for name, each in zip(part, results) if isinstance(each, Tensor)]
            # One group, unless a file's header states another size than its pixels have.
            for _, group in groupby(readable, key=lambda item: item[1].shape):
                names, pixels = zip(*group)
                any_read += len(names)
                yield self.batch(list(names), list(pixels))
            done += len(part)
            if progress:
                progress(done, len(paths))
        if not any_read:
            name, reason = next(iter((skipped or {}).items()))
            raise ArcvqError(f"none of the {len(paths)} images can be read; the first is {paths[name]} ({reason})")


def images_at_a_time(tokenizer: Tokenizer, size: HeightWidth, tile: Tile | None, batch_size: int | None) -> int:
    """Images of this size in a batch: `batch_size` of them, or as many as have that many tiles."""
    if tile is None:
        return batch_size or tokenizer.batch_size(*size)
    factor = tokenizer.downsampling
    tiles = TileGrid.of(size[0] // factor, size[1] // factor, tile, factor)
    return max(1, (batch_size or tokenizer.batch_size(*tiles.tile_size)) // (len(tiles.rows) * len(tiles.columns)))


def padded_size(size: HeightWidth, factor: int) -> HeightWidth:
    """The size with both sides rounded up to multiples of a factor."""
    return ceil(size[0] / factor) * factor, ceil(size[1] / factor) * factor


def pad_by_reflection(images: Tensor, height: int, width: int) -> Tensor:
    """Images of any dtype extended at the bottom and the right to height × width, each row and column reflected at its end."""
    missing = (height - images.shape[2], width - images.shape[3])
    if not any(missing):
        return images
    # NumPy reflects again where an image is narrower than what is missing; torch refuses.
    return torch.from_numpy(np.pad(images.numpy(), [(0, 0), (0, 0), (0, missing[0]), (0, missing[1])], mode="reflect"))


def own_size(header: Header | UnreadableImage) -> HeightWidth | None:
    """Height and width by a file's header; None if it cannot be read."""
    return None if isinstance(header, UnreadableImage) else (header.height, header.width)
