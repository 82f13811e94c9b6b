"""The images of a set that are nearest to other images: whether a generator repeats its training images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arcvq.data import Images, batches
from arcvq.errors import ArcvqError
from arcvq.metrics.distributions import BLOCK, squared_distances
from arcvq.metrics.fid import fid_batch_size, fid_features
from arcvq.metrics.originals import original_features_file, read_original_features, write_original_features
from arcvq.metrics.protocols import hash_fields

# Without Inception, larger images are averaged to this side before their pixels are compared.
PIXEL_SIDE = 32


@dataclass(frozen=True)
class Nearest:
    """The k nearest images of each query, nearest first; of equally near ones those that come first in their set."""

    indices: Tensor  # int64 (n, k), on the CPU
    distances: Tensor  # float64 (n, k)


class ImageFeatures:
    """uint8 images (B, C, H, W) → rows whose Euclidean distance compares them: Inception's features, or pixels without the network."""

    def __init__(self, inception: nn.Module | None, device: torch.device) -> None:
        self.inception, self.device = inception, device

    def of(self, images: Tensor) -> Tensor:
        """Rows (B, D), float32. Those of pixels are scaled so that a distance is the root mean square difference of levels."""
        images = images.to(self.device)
        if self.inception is not None:
            return fid_features(images, self.inception).float()
        pixels = F.adaptive_avg_pool2d(images.float(), _pixel_size(*images.shape[2:])).flatten(1)
        return pixels / pixels.shape[1] ** 0.5

    def with_mirrored(self, parts: Iterable[Tensor]) -> Tensor:
        """Rows (2, N, D) of the images in parts, and of the same images mirrored."""
        rows = [torch.stack([self.of(part), self.of(part.flip(-1))]) for part in parts]
        return torch.cat(rows, dim=1)

    def of_set(self, images: Images, progress: Callable[[int], None] | None = None) -> Iterator[Tensor]:
        """Rows of a set in parts. Inception's features of a set in memory are kept on disk, in the cache that FID's metrics use."""
        size = fid_batch_size(self.device) if self.inception is not None else BLOCK
        file = None
        if self.inception is not None:
            choices = {"features": "inception", "kept": None, "resize": None, "interpolation": "tensorflow"}
            file = original_features_file(images, hash_fields(choices), self.inception, self.device, size)
        cached = read_original_features(file)
        parts = cached.split(BLOCK) if cached is not None else map(self.of, batches(images, size))
        kept = []
        for part in parts:
            if file is not None and cached is None:
                kept.append(part.cpu())
            yield part.to(self.device)
            if progress is not None:
                progress(len(part))
        if kept:
            write_original_features(file, torch.cat(kept))

    def describe(self, height: int, width: int) -> str:
        """What a distance of images of this size is."""
        if self.inception is not None:
            return "Euclidean distance of Inception features"
        rows, columns = _pixel_size(height, width)
        return f"root mean square difference of 8-bit levels at {rows}×{columns} pixels"


def nearest_images(queries: Tensor, reference: Iterable[Tensor], k: int) -> Nearest:
    """The k nearest of the reference's rows, which come in parts (m, D), for each query: exact, and in blocks.

    `queries` (V, N, D) are V variants of N images; a distance is that of the nearest variant.
    """
    count = queries.shape[1]
    centre = queries.double().mean((0, 1))  # distances do not depend on it; near the mean, products round less
    distances = torch.full((count, k), torch.inf, dtype=torch.float64, device=queries.device)
    indices = torch.full((count, k), -1, device=queries.device)
    seen = 0
    for part in reference:
        for blocks in zip(*(squared_distances(each, part, centre, BLOCK) for each in queries)):
            rows, columns, _ = blocks[0]
            squared = torch.stack([block[2] for block in blocks]).amin(0)  # (n, m)
            numbers = torch.arange(seen + columns.start, seen + columns.stop, device=queries.device).expand_as(squared)
            found = torch.cat([distances[rows], squared], dim=1).sort(dim=1, stable=True)
            distances[rows] = found.values[:, :k]
            indices[rows] = torch.cat([indices[rows], numbers], dim=1).gather(1, found.indices[:, :k])
        seen += len(part)
    if seen < k:
        raise ArcvqError(f"cannot find the {k} nearest of {seen} images: ask for fewer")
    return Nearest(indices.cpu(), distances.sqrt().cpu())


def _pixel_size(height: int, width: int) -> tuple[int, int]:
    return min(height, PIXEL_SIDE), min(width, PIXEL_SIDE)
