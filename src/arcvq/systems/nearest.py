"""Generated images beside the training images nearest to them, and how near test images are: whether a generator memorizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arcvq.data import Images, batches, first_images, read_image, to_uint8, to_unit, write_png
from arcvq.metrics import load_generation_networks
from arcvq.metrics.nearest import ImageFeatures, nearest_images
from arcvq.priors import Generator
from arcvq.priors.files import GRID_IMAGES, image_grid
from arcvq.storage import write_json
from arcvq.systems.image_sets import ImageSets
from arcvq.tokenizers import Tokenizer

# So many test images are the yardstick; a generated image is near if its distance is below this share of theirs.
TEST_IMAGES = 1000
NEAR_SHARE = 0.05
# Image files that are read, and images that are encoded, at a time.
CHUNK = 64


def write_nearest(
    generator: Generator,
    files: Sequence[Path],
    sets: ImageSets,
    k: int,
    out: Path,
    *,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """Find the `k` training images nearest to each generated image (PNG files); write nearest.png and nearest.json, which is returned.

    Distances are those of Inception features, or of pixels where its weights are not on this machine; a mirrored image counts as
    the same. Test images go through the tokenizer first, because all generated images come from its decoder. The picture has a row
    for each of the first generated images by distance: the image, then the training images.
    """
    train, test = sets.train, first_images(sets.test, TEST_IMAGES)
    networks = load_generation_networks(["kid"], device=generator.device)
    features = ImageFeatures(networks.inception, generator.device)

    def count(label: str, total: int) -> Callable[[int], None]:
        done = 0

        def add(more: int) -> None:
            nonlocal done
            done += more
            if progress is not None:
                progress(label, done, total)

        return add

    generated = features.with_mirrored(_read(files, train.channels, count("generated images", len(files))))
    reconstructed = features.with_mirrored(_reconstruct(generator.tokenizer, test, count("test images", len(test))))
    parts = features.of_set(train, count("training images", len(train)))
    found = nearest_images(torch.cat([generated, reconstructed], dim=1), parts, k)
    distances, test_distances = found.distances[: len(files)], found.distances[len(files) :]

    own, yardstick = distances[:, 0], test_distances[:, 0]
    near = yardstick.quantile(NEAR_SHARE)
    document: dict[str, Any] = {
        "data": sets.data,
        "training_images": len(train),
        "distance": features.describe(train.height, train.width),
        "reason": networks.missing.get("kid"),
        "generated": {
            **_summary(own),
            "nearer_than_a_test_image": _share_nearer(own, yardstick),
            "nearer_than_5_percent_of_test": (own < near).double().mean().item(),
        },
        "test": {**_summary(yardstick), "5_percent_are_below": near.item()},
        "images": [
            {"file": file.name, **_named(sets, found.indices[row].tolist()), "distances": distances[row].tolist()}
            for row, file in enumerate(files)
        ],
        "test_distances": yardstick.tolist(),
    }
    shown: list[Tensor] = []
    for row in own.argsort(stable=True)[:GRID_IMAGES].tolist():
        shown += [read_image(files[row], train.channels), *train.gather(found.indices[row]).cpu()]
    write_png(out / "nearest.png", image_grid(torch.stack(shown), columns=k + 1))
    write_json(out / "nearest.json", document)
    return document


def _named(sets: ImageSets, indices: list[int]) -> dict[str, Any]:
    """Training images by their paths; where there are no files by their indices, which hold in the whole set: its first are trained on."""
    if sets.files is None:
        return {"indices": indices}
    return {"paths": [str(sets.files.path(index)) for index in indices]}


def _summary(distances: Tensor) -> dict[str, float]:
    """Number, least and median of the distances to the nearest training image."""
    return {"images": len(distances), "least": distances.min().item(), "median": distances.median().item()}


def _share_nearer(distances: Tensor, others: Tensor) -> float:
    """The share of pairs whose first distance is the smaller one; equal ones count half."""
    nearer, equal = distances[:, None] < others, distances[:, None] == others
    return (nearer.double().mean() + equal.double().mean() / 2).item()


def _read(files: Sequence[Path], channels: int, progress: Callable[[int], None]) -> Iterator[Tensor]:
    for first in range(0, len(files), CHUNK):
        part = files[first : first + CHUNK]
        yield torch.stack([read_image(file, channels) for file in part])
        progress(len(part))


def _reconstruct(tokenizer: Tokenizer, images: Images, progress: Callable[[int], None]) -> Iterator[Tensor]:
    for part in batches(images, CHUNK):
        yield to_uint8(tokenizer.reconstruct(to_unit(part)))
        progress(len(part))
