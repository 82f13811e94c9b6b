"""How fast image files are read: decoded, resized, cropped and put into batches, from a folder and from shards."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from arcvq.data import reading
from arcvq.data.decoded import DecodedImages
from arcvq.data.folder import load_folder
from arcvq.data.shard_writer import ShardOptions, write_shards
from arcvq.data.shards import load_shards
from arcvq.errors import ArcvqError
from benchmarks.measure import measure_cost

THREADS = (1, 2, 4, 8, 16)


def loader_rows(
    data: str, image_size: int, batch_size: int, limit: int | None, seconds: float, threads: Sequence[int] = THREADS
) -> Iterator[dict[str, Any]]:
    """A row per kind of set and number of threads. The shards hold the folder's images, resized and cropped, as JPEG."""
    if not data.startswith("folder:"):
        raise ArcvqError(f"the suite loader reads image files: expected --data folder:PATH, got {data}")
    folder = Path(data.removeprefix("folder:")).expanduser()
    with tempfile.TemporaryDirectory() as temporary:
        shards = Path(temporary) / "shards"
        write_shards(folder, shards, ShardOptions(size=image_size))
        about: dict[str, Any] = {"split": "train", "image_size": image_size, "limit": limit, "memory": 0}
        sets = {"folder": load_folder(folder, **about), "shards": load_shards(shards, **about)}
        for kind, images in sets.items():
            assert isinstance(images, DecodedImages)
            for count in threads:
                row = {"task": "loader", "name": f"{kind}, {count} threads", "kind": kind, "threads": count}
                yield row | _measure_reading(images, min(batch_size, len(images)), count, seconds)


def _measure_reading(images: DecodedImages, batch_size: int, threads: int, seconds: float) -> dict[str, float]:
    """Time of a batch of random images, read by this number of threads."""
    generator = torch.Generator().manual_seed(0)
    with ThreadPoolExecutor(threads) as pool, mock.patch.object(reading, "image_threads", return_value=pool):
        measured = measure_cost(
            lambda: images.gather(torch.randint(len(images), (batch_size,), generator=generator)),
            torch.device("cpu"),
            seconds,
        )
    return {"batch_size": batch_size, **measured, "images_per_second": 1e3 * batch_size / measured["milliseconds"]}
