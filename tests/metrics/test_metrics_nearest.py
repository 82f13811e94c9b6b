"""The search for the nearest images of a set."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from arcvq.data import InMemoryImages
from arcvq.errors import ArcvqError
from arcvq.metrics import GenerationNetworks, GenerationProtocol
from arcvq.metrics.generation_features import reference_features
from arcvq.metrics.nearest import ImageFeatures, nearest_images


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ARCVQ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("arcvq.metrics.fid.INPUT_SIZE", 16)
    return tmp_path / "cache"


def toy_images(count: int, seed: int = 0, side: int = 8) -> InMemoryImages:
    generator = torch.Generator().manual_seed(seed)
    return InMemoryImages("toy", torch.randint(256, (count, 3, side, side), generator=generator).byte())


class Pooled(nn.Module):
    """Means of the image's parts, in place of Inception. Counts the images it has seen."""

    seen = 0

    def forward(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        return nn.functional.adaptive_avg_pool2d(images, 4).flatten(1)


def by_brute_force(queries: Tensor, pixels: Tensor) -> Tensor:
    """Root mean square differences (n, N) of images and of their mirror images; the smaller one."""
    both = [
        (each.double()[:, None] - pixels.double()).square().mean((2, 3, 4)).sqrt()
        for each in (queries, queries.flip(-1))
    ]
    return torch.minimum(*both)


@pytest.mark.parametrize("block", [3, 1024])
def test_pixels_are_searched_exactly_in_blocks(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arcvq.metrics.nearest.BLOCK", block)
    reference, queries = toy_images(20), toy_images(7, seed=1).pixels
    features = ImageFeatures(None, torch.device("cpu"))
    found = nearest_images(features.with_mirrored([queries]), features.of_set(reference), 4)
    expected = by_brute_force(queries, reference.pixels).sort(dim=1)
    assert torch.equal(found.indices, expected.indices[:, :4])
    torch.testing.assert_close(found.distances, expected.values[:, :4])


def test_copy_and_mirrored_copy_have_distance_0_and_the_first_of_equal_images_wins() -> None:
    pixels = toy_images(12).pixels
    reference = InMemoryImages("toy", torch.cat([pixels, pixels]))
    features = ImageFeatures(None, torch.device("cpu"))
    queries = torch.stack([pixels[5], pixels[3].flip(-1)])
    found = nearest_images(features.with_mirrored([queries]), features.of_set(reference), 2)
    assert found.indices.tolist() == [[5, 17], [3, 15]]
    assert found.distances.eq(0).all()


def test_large_images_are_compared_at_32_pixels() -> None:
    images = torch.arange(64, dtype=torch.uint8).repeat_interleave(2).expand(1, 3, 96, 128)
    features = ImageFeatures(None, torch.device("cpu"))
    assert features.of(images).shape == (1, 3 * 32 * 32)
    assert "32×32 pixels" in features.describe(96, 128)
    assert "8×8 pixels" in features.describe(8, 8)


def test_features_of_a_set_are_computed_once() -> None:
    network, reference = Pooled(), toy_images(20)
    features = ImageFeatures(network, torch.device("cpu"))
    first = torch.cat(list(features.of_set(reference)))
    assert network.seen == 20
    assert torch.equal(torch.cat(list(features.of_set(reference))), first)
    assert network.seen == 20
    assert features.describe(8, 8) == "Euclidean distance of Inception features"


def test_features_that_the_metrics_of_generation_kept_are_used() -> None:
    network, reference = Pooled(), toy_images(20)
    about: dict[str, Any] = {"data": "toy", "split": "train", "classes": "none", "seed": 0}
    protocol = GenerationProtocol(images=20, reference_images=20, **about)
    device = torch.device("cpu")
    kept = reference_features(reference, protocol, GenerationNetworks(network), {"kid"}, device, lambda _: None)
    found = torch.cat(list(ImageFeatures(network, device).of_set(reference)))
    assert torch.equal(found, kept.get("inception", device))
    assert network.seen == 20


def test_more_neighbours_than_images_are_refused() -> None:
    features = ImageFeatures(None, torch.device("cpu"))
    with pytest.raises(ArcvqError, match="5 nearest of 4 images"):
        nearest_images(features.with_mirrored([toy_images(1).pixels]), features.of_set(toy_images(4)), 5)
