"""Where batches come from: a function of seed and batch number, so that any position can be taken up again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arcvq.data.augment import Augmentation, augment, draw
from arcvq.data.batches import batch_count, batch_indices
from arcvq.data.images import Images, InMemoryImages, first_images, hold_out
from arcvq.data.load import load_images
from arcvq.data.reading import one_ahead
from arcvq.errors import ArcvqError

Batch = Mapping[str, Tensor]


class Source:
    """Batches by number. `number` counts global batches from 0; every process gets its part of each.

    `batches` runs on the host, ahead of the device if it can. `fetch` turns what it hands out into what a task sees, on the
    device: a resident set hands out indices, and looking them up is part of the step, so that a CUDA graph can hold it.
    """

    name: str
    batch_size: int  # of a global batch
    length: int
    resident = False  # everything `fetch` reads stays where it is on the device

    def batches(self, *, seed: int, first: int = 0, rank: int = 0, world: int = 1) -> Iterator[dict[str, Tensor]]:
        """From global batch `first` on, without an end."""
        raise NotImplementedError

    def fetch(self, batch: Batch) -> Batch:
        return batch

    def to(self, device: torch.device) -> Source:
        return self

    @property
    def batches_per_epoch(self) -> int:
        return batch_count(self.length, self.batch_size)

    def samples_in_batch(self, number: int) -> int:
        """How many samples global batch `number` holds: the last of an epoch may be smaller."""
        return min(self.batch_size, self.length - number % self.batches_per_epoch * self.batch_size)

    def index_batches(
        self, *, seed: int, first: int, rank: int, world: int, device: torch.device | str = "cpu"
    ) -> Iterator[tuple[int, Tensor]]:
        """(epoch, int64 indices) of this process's part of each global batch."""
        epoch, start = divmod(first, self.batches_per_epoch)
        while True:
            parts = batch_indices(
                self.length, self.batch_size, seed=seed, epoch=epoch, start=start, rank=rank, world=world, device=device
            )
            for part in parts:
                yield epoch, part
            epoch, start = epoch + 1, 0


class TensorSource(Source):
    """Named tensors of one length, resident on the device."""

    resident = True

    def __init__(self, tensors: Mapping[str, Tensor], batch_size: int, name: str = "tensors") -> None:
        lengths = {len(tensor) for tensor in tensors.values()}
        if len(lengths) != 1 or lengths == {0}:
            raise ArcvqError(f"{name}: expected tensors of one length above 0, got lengths {sorted(lengths)}")
        self.tensors, self.name, self.batch_size = dict(tensors), name, batch_size
        (self.length,) = lengths

    def batches(self, *, seed: int, first: int = 0, rank: int = 0, world: int = 1) -> Iterator[dict[str, Tensor]]:
        device = next(iter(self.tensors.values())).device
        for _, index in self.index_batches(seed=seed, first=first, rank=rank, world=world, device=device):
            yield {"index": index}

    def fetch(self, batch: Batch) -> Batch:
        return {name: tensor[batch["index"]] for name, tensor in self.tensors.items()}

    def to(self, device: torch.device) -> TensorSource:
        tensors = {name: tensor.to(device) for name, tensor in self.tensors.items()}
        return TensorSource(tensors, self.batch_size, self.name)


@dataclass
class ImageSource(Source):
    """Batches of images: {"image": uint8 (b, C, H, W), "label": int64 (b,) where there are classes}.

    A set in memory is looked up on its device; other sets are decoded one batch ahead.
    """

    images: Images
    batch_size: int
    augmentation: Augmentation | None = None
    name: str = ""  # the data set's, if left out

    def __post_init__(self) -> None:
        self.name, self.length = self.name or self.images.name, len(self.images)
        self.resident = isinstance(self.images, InMemoryImages)
        self.labels = self.images.labels
        if isinstance(self.images, InMemoryImages) and self.labels is not None:
            self.labels = self.labels.to(self.images.device)
        if self.augmentation is not None:
            self.augmentation.check(self.images.height, self.images.width)

    @property
    def channels(self) -> int:
        return self.images.channels

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the images in a batch."""
        crop = self.augmentation.crop if self.augmentation else None
        return (crop, crop) if crop else (self.images.height, self.images.width)

    def pixel_variance(self) -> float:
        """Population variance of all pixels, in the [-1, 1] scale."""
        return self.images.pixel_variance()

    def batches(self, *, seed: int, first: int = 0, rank: int = 0, world: int = 1) -> Iterator[dict[str, Tensor]]:
        device = self.images.device if isinstance(self.images, InMemoryImages) else torch.device("cpu")
        found = self.index_batches(seed=seed, first=first, rank=rank, world=world, device=device)
        if self.resident:
            yield from (self._index(epoch, index, seed) for epoch, index in found)
        else:
            yield from one_ahead(lambda part: self._decode(*part, seed), found)

    def fetch(self, batch: Batch) -> Batch:
        if not self.resident:
            return batch
        fetched = {"image": self.images.gather(batch["index"])}
        if self.labels is not None:
            fetched["label"] = self.labels[batch["index"]]
        draws = {name: value for name, value in batch.items() if name != "index"}
        return fetched if self.augmentation is None else fetched | {"image": self._augmented(fetched["image"], draws)}

    def to(self, device: torch.device) -> ImageSource:
        return ImageSource(self.images.to(device), self.batch_size, self.augmentation, self.name)

    def _index(self, epoch: int, index: Tensor, seed: int) -> dict[str, Tensor]:
        return {"index": index, **self._draws(epoch, index, seed)}

    def _decode(self, epoch: int, index: Tensor, seed: int) -> dict[str, Tensor]:
        pixels = self.images.gather(index)
        if self.augmentation is not None:
            pixels = self._augmented(pixels, self._draws(epoch, index, seed))
        batch = {"image": pixels}
        return batch if self.labels is None else batch | {"label": self.labels[index.cpu()]}

    def _draws(self, epoch: int, index: Tensor, seed: int) -> dict[str, Tensor]:
        if self.augmentation is None:
            return {}
        size = (self.images.height, self.images.width)
        draws = draw(self.augmentation, size, seed, epoch, index.cpu())
        return {name: tensor.to(index.device, non_blocking=True) for name, tensor in draws.items()}

    def _augmented(self, pixels: Tensor, draws: Mapping[str, Any]) -> Tensor:
        assert self.augmentation is not None
        return augment(pixels, draws, self.augmentation)


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
) -> tuple[ImageSource, ImageSource]:
    """Training images of a data set, and those that evaluations see: the test set, or the last `holdout` training images."""
    if holdout:
        everything = load_images(name, split="train", root=root, image_size=image_size)
        rest, held = hold_out(everything, holdout)
        train, test = first_images(rest, limit), first_images(held, evaluation_images)
        source = ImageSource(train, batch_size, augmentation)
        return source, ImageSource(test, batch_size, name=f"the held-out images of {name}")
    images = load_images(name, split="train", root=root, image_size=image_size, limit=limit)
    source = ImageSource(images, batch_size, augmentation)
    height, width = source.image_size
    size = image_size if augmentation is None or augmentation.crop is None else augmentation.crop
    size = size or (height if height == width else None)
    test_images = load_images(name, split="test", root=root, image_size=size, limit=evaluation_images)
    return source, ImageSource(test_images, batch_size, name=f"the test images of {name}")
