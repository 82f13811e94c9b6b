"""Metrics of generated images, with small networks of known features in place of Inception and VGG."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from arcvq.data import InMemoryImages
from arcvq.errors import ArcvqError
from arcvq.metrics import (
    GENERATION_METRICS,
    METRIC_LABELS,
    FeatureStatistics,
    GenerationEvaluation,
    GenerationNetworks,
    GenerationProtocol,
    InceptionNetwork,
    fid_features,
    frechet_distance,
    inception_head,
    inception_score,
    kernel_distance,
    measure_generation,
    precision_recall,
)
from arcvq.metrics.generation_features import kept_images

COUNT = 60


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of each test, which is returned; and small inputs of the networks, for speed."""
    monkeypatch.setenv("ARCVQ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("arcvq.metrics.fid.INPUT_SIZE", 16)
    monkeypatch.setattr("arcvq.metrics.vgg.INPUT_SIZE", 16)
    return tmp_path / "cache"


def toy_images(count: int = COUNT, seed: int = 0, channels: int = 3, low: int = 0, high: int = 256) -> InMemoryImages:
    generator = torch.Generator().manual_seed(seed)
    return InMemoryImages("toy", torch.randint(low, high, (count, channels, 8, 8), generator=generator).byte())


class Pooled(nn.Module):
    """Means of the image's parts through a linear layer: a network of features that records its batch sizes."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.linear = nn.Linear(27, 6)
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)
        self.requires_grad_(False)
        self.seen: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        self.seen.append(len(images))
        return self.linear(nn.functional.adaptive_avg_pool2d(images, 3).flatten(1))


def networks(seed: int = 0) -> GenerationNetworks:
    head = nn.Linear(6, 4, bias=False).requires_grad_(False)
    head.weight.data = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))
    return GenerationNetworks(Pooled(seed), head, Pooled(seed + 1))


def protocol(images: int = COUNT, reference: int = COUNT, **changes: Any) -> GenerationProtocol:
    settings: dict[str, Any] = {"kid_subsets": 4, "kid_subset_size": 20, **changes}
    return GenerationProtocol(
        images=images, data="toy", split="test", reference_images=reference, classes="none", seed=0, **settings
    )


def measure(
    generated: Tensor, reference: InMemoryImages | None = None, batch_size: int = 500, **options: Any
) -> GenerationEvaluation:
    reference = toy_images() if reference is None else reference
    options.setdefault("protocol", protocol(len(generated), len(reference)))
    options.setdefault("networks", networks())
    return measure_generation(iter(generated.split(batch_size)), reference, **options)


def test_metrics_are_those_of_the_features() -> None:
    real, fake, parts = toy_images(), toy_images(50, seed=1, low=20), networks()
    assert parts.inception is not None
    assert parts.head is not None
    features = [fid_features(side.pixels, parts.inception) for side in (real, fake)]
    statistics = [FeatureStatistics(), FeatureStatistics()]
    for side, rows in zip(statistics, features):
        side.update(rows)
    kid = kernel_distance(*features, subsets=4, subset_size=20)
    score = inception_score(parts.head(features[1]))
    found = measure(fake.pixels)
    assert found.missing == {}
    assert found.metrics["gfid"] == pytest.approx(frechet_distance(*statistics), rel=1e-9)
    assert (found.metrics["kid"], found.metrics["kid_std"]) == pytest.approx(kid, rel=1e-6)
    assert (found.metrics["inception_score"], found.metrics["inception_score_std"]) == pytest.approx(score, rel=1e-6)
    assert (found.metrics["precision"], found.metrics["recall"]) == precision_recall(*features)
    assert (found.metrics["precision_vgg"], found.metrics["recall_vgg"]) != precision_recall(*features)
    assert found.metrics.keys() < METRIC_LABELS.keys()


def test_the_reference_itself_is_perfect() -> None:
    found = measure(toy_images().pixels.flip(0)).metrics
    assert found["gfid"] == pytest.approx(0.0, abs=1e-6)
    assert abs(found["kid"]) < 3 * found["kid_std"]
    assert [found[name] for name in ("precision", "recall", "precision_vgg", "recall_vgg")] == [1.0] * 4
    assert found["duplicate_share"] == 0.0


def test_constant_images_are_far_off() -> None:
    found = measure(torch.zeros(COUNT, 3, 8, 8, dtype=torch.uint8)).metrics
    assert found["gfid"] > 1
    assert found["kid"] > 3 * found["kid_std"]
    assert (found["precision"], found["recall"]) == (0.0, 0.0)
    assert found["inception_score"] == pytest.approx(1.0)
    assert found["duplicate_share"] == pytest.approx(1 - 1 / COUNT)


def test_repeated_images_are_counted() -> None:
    pixels = toy_images(20, seed=1).pixels
    found = measure(torch.cat([pixels, pixels[:5]]), metrics=["duplicate_share"], batch_size=7)
    assert found.metrics == {"duplicate_share": pytest.approx(0.2)}


@pytest.mark.parametrize("batch_size", [1, 7, 50, 64])
def test_result_does_not_depend_on_how_images_come(batch_size: int) -> None:
    fake = toy_images(64, seed=1).pixels
    own = networks()
    found = measure(fake, batch_size=batch_size, networks=own)
    assert found.metrics == measure(fake).metrics
    assert isinstance(own.inception, Pooled)
    assert own.inception.seen == [50, 10, 50, 14]  # the reference's images, then the generated ones


def test_generated_images_are_taken_one_batch_at_a_time() -> None:
    waiting = 0

    def generate() -> Iterator[Tensor]:
        nonlocal waiting
        for part in toy_images(150, seed=1).pixels.split(10):
            waiting += len(part)
            assert waiting <= 50 + 10
            yield part

    def progress(done: int, total: int) -> None:
        nonlocal waiting
        assert total == 150 + COUNT
        if done > COUNT:
            waiting -= 50

    result = measure_generation(generate(), toy_images(), protocol(150), networks=networks(), progress=progress)
    assert (waiting, result.missing) == (0, {})


def test_greyscale_images_are_measured_as_rgb() -> None:
    grey, fake = toy_images(channels=1), toy_images(seed=1, channels=1).pixels
    rgb = InMemoryImages("rgb", grey.pixels.repeat(1, 3, 1, 1))
    assert measure(fake, grey).metrics == measure(fake.repeat(1, 3, 1, 1), rgb).metrics


def test_features_of_the_reference_are_cached(cache: Path) -> None:
    fake = toy_images(50, seed=1).pixels
    fresh = measure(fake)
    assert sorted(file.parent.name for file in cache.rglob("*.safetensors")) == ["features", "features", "fid"]
    again = networks()
    assert measure(fake, networks=again).metrics == fresh.metrics
    for network in (again.inception, again.vgg):
        assert isinstance(network, Pooled)
        assert sum(network.seen) == 50  # only the generated images
    # Another network, resize or reference has its own files.
    measure(fake, networks=networks(seed=5))
    measure(fake, protocol=protocol(50, fid_resize=16), metrics=["gfid"])
    measure(fake, toy_images(seed=7), metrics=["gfid"])
    assert len(list(cache.rglob("*.safetensors"))) == 8


def test_damaged_cache_is_measured_anew(cache: Path) -> None:
    fake = toy_images(50, seed=1).pixels
    fresh = measure(fake)
    for file in cache.rglob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert measure(fake).metrics == fresh.metrics


def test_large_references_keep_features_of_a_drawn_part() -> None:
    few = protocol(50, reference_features=20)
    kept = kept_images(COUNT, few)
    assert kept is not None
    assert int(kept.sum()) == 20
    assert torch.equal(kept, kept_images(COUNT, few))  # type: ignore[arg-type]
    assert not torch.equal(kept, kept_images(COUNT, replace(few, metric_seed=1)))  # type: ignore[arg-type]
    assert kept_images(20, few) is None

    fake, part = toy_images(50, seed=1).pixels, InMemoryImages("part", toy_images().pixels[kept])
    found, whole, alone = measure(fake, protocol=few).metrics, measure(fake).metrics, measure(fake, part).metrics
    assert found["gfid"] == whole["gfid"] != alone["gfid"]
    for name in ("precision", "recall", "precision_vgg", "recall_vgg"):
        assert found[name] == alone[name]
    assert found["kid"] == pytest.approx(alone["kid"], rel=1e-6)


def test_missing_weights_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCVQ_WEIGHTS", str(tmp_path))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    fake = toy_images(20, seed=1).pixels
    found = measure(fake, networks=None)
    assert found.metrics == {"duplicate_share": 0.0}
    assert found.missing.keys() == set(GENERATION_METRICS) - {"duplicate_share"}
    assert "inception-2015-12-05.safetensors" in found.missing["gfid"]
    assert "vgg16.safetensors" in found.missing["precision_recall_vgg"]
    # An Inception network without its classification head, as it is often passed on.
    monkeypatch.setattr("arcvq.metrics.generation_features.fid_network", lambda device, download: Pooled())
    save_file({"other": torch.zeros(1)}, tmp_path / "inception-2015-12-05.safetensors")
    found = measure(fake, networks=None, metrics=["gfid", "inception_score"])
    assert found.metrics.keys() == {"gfid"}
    assert "lacks fc.weight" in found.missing["inception_score"]


def test_head_is_read_from_the_weights_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCVQ_WEIGHTS", str(tmp_path))
    weight = torch.randn(1008, 2048, generator=torch.Generator().manual_seed(0))
    save_file({"fc.weight": weight, "fc.bias": torch.ones(1008)}, tmp_path / "inception-2015-12-05.safetensors")
    head = inception_head()
    assert not head.weight.requires_grad
    features = torch.randn(2, 2048, generator=torch.Generator().manual_seed(1))
    assert torch.equal(head(features), features @ weight.T)
    # Such a head is found in torch's cache, too, when the file in the folder has none.
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    torch.save({"fc.weight": 2 * weight}, tmp_path / "hub/checkpoints/weights-inception-2015-12-05-6726825d.pth")
    save_file({"other": torch.zeros(1)}, tmp_path / "inception-2015-12-05.safetensors")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    assert torch.equal(inception_head().weight, 2 * weight)
    assert InceptionNetwork()[-1](torch.zeros(1, 2048, 1, 1)).shape == (1, head.in_features)


def test_too_few_images_are_reported() -> None:
    found = measure(toy_images(3, seed=1).pixels)
    assert found.metrics.keys() == {"gfid", "kid", "kid_std", "duplicate_share"}
    assert "an image in each of 10 splits" in found.missing["inception_score"]
    assert "more than 3 images" in found.missing["precision_recall"]
    found = measure(toy_images(1, seed=1).pixels)
    assert found.metrics.keys() == {"duplicate_share"}
    assert "at least 2 images" in found.missing["gfid"]


def test_networks_that_were_not_given_are_reported() -> None:
    found = measure(toy_images(20, seed=1).pixels, networks=GenerationNetworks(Pooled()))
    assert found.missing.keys() == {"inception_score", "precision_recall_vgg"}
    assert found.metrics["gfid"] > 0


def test_label_of_fid_states_the_number_of_images() -> None:
    few = GenerationEvaluation({}, {}, protocol(5_000, 50_000), 0.0)
    assert few.label("gfid") == "gFID of 5,000 images, biased upwards"
    assert GenerationEvaluation({}, {}, protocol(50_000, 10_000), 0.0).label("gfid") == "gFID of 50,000 images"
    assert few.label("kid") == "KID"


def test_json_states_the_whole_protocol() -> None:
    result = measure(toy_images(20, seed=1).pixels, metrics=["gfid"]).to_json()
    assert json.loads(json.dumps(result)) == result
    assert result["protocol"]["images"] == result["images"] == 20
    assert result["protocol_hash"] == protocol(20).hash
    assert "biased upwards" in result["protocol"]["line"]
    assert result["metrics"].keys() == {"gfid"}


@pytest.mark.parametrize(
    ("generated", "message"),
    [
        (torch.zeros(20, 3, 8, 8), r"uint8.*torch\.float32.*to_uint8"),
        (torch.zeros(20, 3, 16, 16, dtype=torch.uint8), r"\(3, 16, 16\).*toy are \(3, 8, 8\)"),
        (torch.zeros(20, 1, 8, 8, dtype=torch.uint8), r"\(1, 8, 8\).*toy are \(3, 8, 8\)"),
        (torch.zeros(19, 3, 8, 8, dtype=torch.uint8), "states 20 images, but 19 were generated"),
        (torch.zeros(21, 3, 8, 8, dtype=torch.uint8), "states 20 images, but more were generated"),
    ],
)
def test_wrong_images_are_refused(generated: Tensor, message: str) -> None:
    with pytest.raises(ArcvqError, match=message):
        measure(generated, protocol=protocol(20))


def test_wrong_requests_are_refused() -> None:
    fake = toy_images(20, seed=1).pixels
    with pytest.raises(ArcvqError, match="unknown metric 'fid'; choose from gfid, kid"):
        measure(fake, metrics=["fid"])
    with pytest.raises(ArcvqError, match="states 61 reference images, but toy has 60"):
        measure(fake, protocol=protocol(20, 61))
