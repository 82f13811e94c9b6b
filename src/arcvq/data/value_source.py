"""A source of tokens, or latents, of images, in several variants of each image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from arcvq.data.augment import random_bits
from arcvq.data.source import Batch, Source
from arcvq.errors import ArcvqError

# The stream of random numbers that chooses variants; crops and flips have others.
VARIANT_STREAM = 3


class ValueSource(Source):
    """Batches {"values": (b, ...), "label": int64 (b,) if there are classes}, resident on the device.

    values  (variants, N, ...): what a tokenizer makes of N images, whole, mirrored, cropped. Which variant of an image a batch has
            depends on (seed, epoch, index), so that a resumed training sees the same ones.
    labels  int64 (N,): of the images that the values are of, where others stand in for some that cannot be read; `skipped` are these
    """

    resident = True

    def __init__(
        self,
        values: Tensor,
        labels: Tensor | None,
        batch_size: int,
        name: str,
        class_names: list[str] | None = None,
        skipped: Mapping[str, str] | None = None,
    ) -> None:
        if values.dim() < 3 or not len(values) or not values.shape[1]:
            raise ArcvqError(f"{name}: expected values (variants, images, ...), got shape {tuple(values.shape)}")
        self.values, self.labels, self.batch_size, self.name = values, labels, batch_size, name
        self.class_names, self.length, self._skipped = class_names, values.shape[1], skipped

    @property
    def skipped(self) -> Mapping[str, str] | None:
        """The images that could not be read when they were encoded: path → reason. None if that is an error."""
        return self._skipped

    @property
    def classes(self) -> int:
        """How many classes the images have; 0 without labels."""
        return count_classes(self.labels, self.class_names)

    def batches(self, *, seed: int, first: int = 0, rank: int = 0, world: int = 1) -> Iterator[dict[str, Tensor]]:
        """Yield {"index", "variant"}, each int64 (b,), for this process's part of each global batch."""
        device = self.values.device
        for epoch, index in self.index_batches(seed=seed, first=first, rank=rank, world=world):
            bits = random_bits(seed, epoch, VARIANT_STREAM, index.numpy())
            variant = torch.from_numpy((bits % len(self.values)).astype("int64"))
            yield {"index": index.to(device), "variant": variant.to(device)}

    def fetch(self, batch: Batch) -> Batch:
        """The values, and labels, of a batch of indices."""
        return self.gather(batch["index"], batch["variant"])

    def gather(self, index: Tensor, variant: Tensor | int = 0) -> Batch:
        """The values and labels at `index`; tokens as int64, latents as float32."""
        values = self.values[variant, index]
        found = {"values": values.float() if values.is_floating_point() else values.long()}
        return found if self.labels is None else found | {"label": self.labels[index]}

    def to(self, device: torch.device) -> ValueSource:
        """The same source with its values on `device`."""
        labels = None if self.labels is None else self.labels.to(device)
        return ValueSource(self.values.to(device), labels, self.batch_size, self.name, self.class_names, self.skipped)


def count_classes(labels: Tensor | None, class_names: Sequence[str] | None) -> int:
    """How many classes images have, those without an image among them; 0 without labels."""
    return 0 if labels is None else max(int(labels.max()) + 1, len(class_names or []))
