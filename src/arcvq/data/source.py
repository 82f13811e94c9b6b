"""Sources of training batches. Each batch depends only on seed and batch number, so training can resume anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arcvq.data.augment import Augmentation, augment, draw_augmentation, draw_windows
from arcvq.data.batches import batch_count, batch_indices
from arcvq.data.decoded import MEMORY, DecodedImages, OnError, keep_in_memory
from arcvq.data.images import Images, InMemoryImages, first_images, hold_out, resize_images, to_device
from arcvq.data.load import load_images
from arcvq.data.reading import prefetch
from arcvq.errors import ArcvqError

Batch = Mapping[str, Tensor]


class Source:
    """Endless numbered batches. Numbers count global batches from 0; each process gets its part of every batch.

    `batches` runs on the host, if possible ahead of the device. `fetch` runs on the device, as a part of the training step: a resident
    source yields only indices from `batches` and looks them up in `fetch`, so that a CUDA graph can capture the lookup.
    """

    name: str
    batch_size: int  # of a global batch
    length: int
    resident = False  # whether all data stays on the device, so that `batches` yields indices

    def batches(self, *, seed: int, first: int = 0, rank: int = 0, world: int = 1) -> Iterator[dict[str, Tensor]]:
        """Yield this process's part of each global batch, without end, from batch number `first` on."""
        raise NotImplementedError

    def fetch(self, batch: Batch) -> Batch:
        """Turn a batch of `batches` into the batch that a task sees."""
        return batch

    def to(self, device: torch.device) -> Source:
        """The same source with its data on `device`."""
        return self

    @property
    def skipped(self) -> Mapping[str, str] | None:
        """What could not be read so far and was replaced: name → reason. None if that is an error."""
        return None

    @property
    def batches_per_epoch(self) -> int:
        return batch_count(self.length, self.batch_size)

    def samples_in_batch(self, number: int) -> int:
        """Number of samples in global batch `number`; the last batch of an epoch may be smaller."""
        return min(self.batch_size, self.length - number % self.batches_per_epoch * self.batch_size)

    def index_batches(
        self, *, seed: int, first: int, rank: int, world: int, device: torch.device | str = "cpu"
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield (epoch, int64 indices) for this process's part of each global batch, without end."""
        epoch, start = divmod(first, self.batches_per_epoch)
        while True:
            parts = batch_indices(
                self.length, self.batch_size, seed=seed, epoch=epoch, start=start, rank=rank, world=world, device=device
            )
            for part in parts:
                yield epoch, part
            epoch, start = epoch + 1, 0


class TensorSource(Source):
    """A source over named tensors of equal length, resident on the device."""

    resident = True

    def __init__(self, tensors: Mapping[str, Tensor], batch_size: int, name: str = "tensors") -> None:
        lengths = {len(tensor) for tensor in tensors.values()}
        if len(lengths) != 1 or lengths == {0}:
            raise ArcvqError(f"{name}: expected tensors of equal length above 0, got lengths {sorted(lengths)}")
        self.tensors, self.name, self.batch_size = dict(tensors), name, batch_size
        (self.length,) = lengths

    def batches(self, *, seed: int, first: int = 0, rank: int = 0, world: int = 1) -> Iterator[dict[str, Tensor]]:
        """Yield {"index": int64 (b,)} for this process's part of each global batch."""
        device = next(iter(self.tensors.values())).device
        for _, index in self.index_batches(seed=seed, first=first, rank=rank, world=world, device=device):
            yield {"index": index}

    def fetch(self, batch: Batch) -> Batch:
        """The rows of every tensor at the batch's indices."""
        return {name: tensor[batch["index"]] for name, tensor in self.tensors.items()}

    def to(self, device: torch.device) -> TensorSource:
        """The same source with its tensors on `device`."""
        tensors = {name: tensor.to(device) for name, tensor in self.tensors.items()}
        return TensorSource(tensors, self.batch_size, self.name)


@dataclass
class ImageSource(Source):
    """A source of image batches: {"image": uint8 (b, C, H, W), "label": int64 (b,) if there are classes}.

    A set in memory is indexed on its device; other sets are decoded one batch ahead, and crops are cut out of the whole of their
    images: not only out of the centre that `image_size` leaves.
    """

    images: Images
    batch_size: int
    augmentation: Augmentation | None = None
    name: str = ""  # default: the name of the images

    def __post_init__(self) -> None:
        self.name, self.length = self.name or self.images.name, len(self.images)
        self.resident = isinstance(self.images, InMemoryImages)
        self.labels = self.images.labels
        if isinstance(self.images, InMemoryImages) and self.labels is not None:
            self.labels = self.labels.to(self.images.device)
        if self.augmentation is not None:
            self.augmentation.check(self.images.height, self.images.width)

    @property
    def skipped(self) -> Mapping[str, str] | None:
        """The images that cannot be read and that others stand in for, so far: path → reason. None if that is an error."""
        return self.images.skipped

    @property
    def channels(self) -> int:
        return self.images.channels

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the images in a batch, after cropping."""
        crop = self.augmentation.crop if self.augmentation else None
        return (crop, crop) if crop else (self.images.height, self.images.width)

    def pixel_variance(self) -> float:
        """Population variance of all pixels in the [-1, 1] scale, before augmentation."""
        return self.images.pixel_variance()

    def batches(self, *, seed: int, first: int = 0, rank: int = 0, world: int = 1) -> Iterator[dict[str, Tensor]]:
        """Yield indices and drawn augmentations if the set is resident, else decoded and augmented images."""
        options = self.augmentation or Augmentation()
        device = self.images.device if isinstance(self.images, InMemoryImages) else torch.device("cpu")
        # What is drawn depends on the indices and is drawn by the host, which should not wait for the device to tell it them.
        indexed = device if self.resident and not options.draws else torch.device("cpu")
        parts = self.index_batches(seed=seed, first=first, rank=rank, world=world, device=indexed)
        if self.resident:
            yield from (self._index_batch(options, epoch, index, seed, device) for epoch, index in parts)
        else:
            yield from prefetch(lambda part: self._decode_batch(*part, seed), parts)

    def fetch(self, batch: Batch) -> Batch:
        """Look up and augment the images of a resident set; decoded batches stay as they are."""
        if not self.resident:
            return batch
        fetched = {"image": self.images.gather(batch["index"])}
        if self.labels is not None:
            fetched["label"] = self.labels[batch["index"]]
        draws = {name: value for name, value in batch.items() if name != "index"}
        return fetched | {"image": augment(fetched["image"], draws, self.augmentation or Augmentation())}

    def to(self, device: torch.device) -> ImageSource:
        """The same source with its images on `device`."""
        return ImageSource(self.images.to(device), self.batch_size, self.augmentation, self.name)

    def _index_batch(
        self, options: Augmentation, epoch: int, index: Tensor, seed: int, device: torch.device
    ) -> dict[str, Tensor]:
        """The batch of a resident set: indices and drawn augmentations, on the device of its pixels."""
        if not options.draws:
            return {"index": index}
        return {"index": to_device(index, device), **self._draw_augmentation(options, epoch, index, seed, device)}

    def _decode_batch(self, epoch: int, index: Tensor, seed: int) -> dict[str, Tensor]:
        """The batch of a set that is not resident: decoded, augmented images and their labels."""
        options = self.augmentation or Augmentation()
        if isinstance(self.images, DecodedImages):
            windows = draw_windows(options.crop, seed, epoch, index) if options.crop else None
            pixels, used = self.images.fetch(index, windows)
            options = replace(options, crop=None)
        else:
            pixels, used = self.images.gather(index), index.cpu()
        pixels = augment(pixels, self._draw_augmentation(options, epoch, index, seed, pixels.device), options)
        batch = {"image": pixels}
        return batch if self.labels is None else batch | {"label": self.labels[used]}

    def _draw_augmentation(
        self, options: Augmentation, epoch: int, index: Tensor, seed: int, device: torch.device
    ) -> dict[str, Tensor]:
        """Random flips and crop positions for these images, on the device of their pixels."""
        size = (self.images.height, self.images.width)
        draws = draw_augmentation(options, size, seed, epoch, index)
        return {name: to_device(tensor, device) for name, tensor in draws.items()}


def load_sources(
    name: str,
    *,
    batch_size: int,
    root: Path | None = None,
    image_size: int | None = None,
    limit: int | None = None,
    holdout: int | None = None,
    evaluation_images: int | None = None,
    augmentation: Augmentation | None = None,
    holdout_every: int | None = None,
    on_error: OnError = "stop",
    memory: float = MEMORY,
) -> tuple[ImageSource, ImageSource]:
    """The training source and the evaluation source of a data set: the test set, or `holdout` training images."""
    files: dict[str, Any] = {"holdout_every": holdout_every, "on_error": on_error, "memory": memory}
    # A set of files in memory has lost what lies beside the centre squares, where crops may be.
    crops = image_size is not None and augmentation is not None and augmentation.crop is not None
    training_memory = 0.0 if crops else memory
    if holdout:
        # Files are divided before they are decoded, so that no held-out image stands in for one that cannot be read.
        images = load_images(name, split="train", root=root, image_size=image_size, **{**files, "memory": 0})
        rest, held_out = hold_out(images, holdout)
        train, test = first_images(rest, limit), first_images(held_out, evaluation_images)
        source = ImageSource(keep_in_memory(train, training_memory), batch_size, augmentation)
        test = keep_in_memory(_at_size(test, source.image_size), memory)
        return source, ImageSource(test, batch_size, name=f"the held-out images of {name}")
    about = {**files, "memory": training_memory}
    images = load_images(name, split="train", root=root, image_size=image_size, limit=limit, **about)
    source = ImageSource(images, batch_size, augmentation)
    height, width = source.image_size
    size = image_size if augmentation is None or augmentation.crop is None else augmentation.crop
    size = size or (height if height == width else None)
    test_images = load_images(name, split="test", root=root, image_size=size, limit=evaluation_images, **files)
    return source, ImageSource(test_images, batch_size, name=f"the test images of {name}")


def _at_size(images: Images, size: tuple[int, int]) -> Images:
    """The images at another size, in memory or as they will be decoded."""
    if (images.height, images.width) == size:
        return images
    if isinstance(images, DecodedImages):
        return images.resized(size)
    assert isinstance(images, InMemoryImages)
    return resize_images(images, size)
