"""Images in tar shards as a data set: any image is read from its place in its shard, so they can be walked in any order."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from arcvq.data.decoded import MEMORY, DecodedImages, OnError, common_shape, load_into_memory
from arcvq.data.files import read_image
from arcvq.data.folder import refuse_holdout_every, split_folders
from arcvq.data.images import Images, Size, check_limit
from arcvq.data.reading import raise_if_unreadable
from arcvq.data.shard_index import ShardIndex, open_index, warn_of_labels
from arcvq.data.splits import choose_test, spread
from arcvq.errors import ArcvqError


class ShardImages(DecodedImages):
    """Images in shards, decoded by threads when a batch needs them."""

    def __init__(self, name: str, index: ShardIndex, picks: np.ndarray, **options: Any) -> None:
        """`picks`, int64 (N,), are the samples of the index that are in the set; `options` as in DecodedImages."""
        super().__init__(name, **options)
        self.index, self.picks = index, picks

    def __len__(self) -> int:
        return len(self.picks)

    def path(self, index: int) -> Path:
        return self.index.sample_path(int(self.picks[index]))

    def read(self, index: int, *, whole: bool = False) -> Tensor:
        """Read an image from its shard and decode it to uint8 (C, H, W)."""
        content = self.index.read(int(self.picks[index]))
        return read_image(self.path(index), self.channels, self.image_size, content, whole=whole)

    def subset(self, indices: Sequence[int]) -> Self:
        """The images at these indices."""
        other = super().subset(indices)
        other.picks = self.picks[list(indices)]
        return other

    def fingerprint(self) -> str | None:
        """A hash of the shards and of the picked samples."""
        return hashlib.sha256(self.index.fingerprint().encode() + self.picks.tobytes()).hexdigest()


def load_shards(
    folder: Path,
    *,
    split: str,
    image_size: Size | None = None,
    limit: int | None = None,
    name: str | None = None,
    holdout_every: int | None = None,
    on_error: OnError = "stop",
    memory: float = MEMORY,
) -> Images:
    """Load one split of the shards in `folder`: into memory if they fit in `memory` GiB, else decoded on demand.

    The splits are `folder/train` and `folder/test` (or `folder/val`) if both exist; otherwise see `choose_test`, with the keys as
    names. `limit` picks images evenly, because shards may be sorted by class.
    """
    check_limit(limit)
    indices, picks = split_samples(folder, holdout_every)
    different = {id(index): index for index in indices.values()}.values()
    unreadable = [error for index in different for error in index.unreadable()]
    kinds = {path: header for index in different for path, header in index.header_kinds().items()}
    if not kinds:
        raise_if_unreadable(unreadable)
    channels, height, width = common_shape([str(path) for path in kinds], list(kinds.values()), image_size)
    index, samples = indices[split], picks[split]
    if not len(samples):
        raise ArcvqError(f"{folder} has no image for the {split} split; it needs at least 2 images")
    samples = samples[spread(len(samples), limit)]
    labelled = all(each.labelled for each in indices.values())
    warn_of_labels(folder, different)
    images = ShardImages(
        name or f"shards:{folder}",
        index,
        samples,
        channels=channels,
        image_size=image_size,
        height=height,
        width=width,
        labels=torch.from_numpy(index.fields["label"][samples]) if labelled else None,
        class_names=index.class_names if labelled else None,
        on_error=on_error,
    )
    return load_into_memory(images, memory, unreadable)


def split_samples(folder: Path, holdout_every: int | None) -> tuple[dict[str, ShardIndex], dict[str, np.ndarray]]:
    """The index of each split and its samples there."""
    folders = split_folders(folder)
    if folders is not None:
        refuse_holdout_every(folder, holdout_every)
        indices = {split: open_index(path) for split, path in folders.items()}
        return indices, {split: np.arange(len(index)) for split, index in indices.items()}
    index = open_index(folder / "train" if (folder / "train").is_dir() else folder)
    test = np.array(choose_test(index.keys, holdout_every))
    picks = {"train": np.flatnonzero(~test), "test": np.flatnonzero(test)}
    return dict.fromkeys(picks, index), picks
