from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file
from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

from arcvq.errors import ArcvqError
from arcvq.metrics import (
    FeatureStatistics,
    InceptionNetwork,
    MissingWeights,
    fid_features,
    fid_network,
    frechet_distance,
)
from arcvq.metrics.eight_bit import emulate_pil_resize, pil_resize
from arcvq.metrics.fid import fid_input


def statistics(mean: torch.Tensor, covariance: torch.Tensor, count: int = 1000) -> FeatureStatistics:
    """Statistics of `count` features with exactly this mean and sample covariance."""
    result = FeatureStatistics()
    result.count = count
    result.total = count * mean
    result.products = (count - 1) * covariance + count * torch.outer(mean, mean)
    return result


def test_frechet_distance_equals_closed_forms() -> None:
    width = 12
    zero, identity = torch.zeros(width, dtype=torch.float64), torch.eye(width, dtype=torch.float64)
    mean = torch.linspace(-1, 2, width, dtype=torch.float64)
    standard = statistics(zero, identity)
    assert frechet_distance(standard, statistics(mean, identity)) == pytest.approx(float(mean.square().sum()))
    assert frechet_distance(standard, statistics(zero, 0.49 * identity)) == pytest.approx(width * (1 - 0.7) ** 2)
    assert frechet_distance(standard, statistics(zero, 9.0 * identity)) == pytest.approx(width * 4.0)


def test_frechet_distance_equals_matrix_square_root() -> None:
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(300, 8, generator=generator, dtype=torch.float64)
    second = torch.randn(200, 8, generator=generator, dtype=torch.float64) @ torch.randn(
        8, 8, generator=generator, dtype=torch.float64
    )
    sides = (FeatureStatistics(), FeatureStatistics())
    for side, features in zip(sides, (first, second)):
        for part in features.split(64):
            side.update(part)
    covariances = [np.cov(features.numpy(), rowvar=False) for features in (first, second)]
    root = scipy.linalg.sqrtm(covariances[0] @ covariances[1]).real
    expected = float((first.mean(0) - second.mean(0)).square().sum()) + np.trace(sum(covariances) - 2 * root)
    assert np.allclose(sides[0].covariance().numpy(), covariances[0])
    assert frechet_distance(*sides) == pytest.approx(expected, rel=1e-9)
    assert frechet_distance(sides[1], sides[0]) == pytest.approx(expected, rel=1e-9)


def test_identical_sets_have_distance_zero_with_few_images() -> None:
    features = torch.rand(10, 64, generator=torch.Generator().manual_seed(0))
    side = FeatureStatistics()
    side.update(features)
    assert frechet_distance(side, side) == pytest.approx(0.0, abs=1e-5)
    moved = FeatureStatistics()
    moved.update(features + 0.5)
    assert frechet_distance(side, moved) == pytest.approx(64 * 0.25, abs=1e-4)


def test_one_image_is_refused() -> None:
    side = FeatureStatistics()
    side.update(torch.ones(1, 4))
    with pytest.raises(ArcvqError, match="at least 2 images"):
        frechet_distance(side, side)


def random_images(channels: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (2, channels, 32, 28), generator=generator, dtype=torch.uint8)


def test_fid_input_of_paper_protocol() -> None:
    images = random_images(3)
    expected = []
    for image in images:
        small = Image.fromarray(image.permute(1, 2, 0).numpy()).resize((229, 229), Image.Resampling.BILINEAR)
        expected.append(torch.from_numpy(np.array(small)).permute(2, 0, 1))
    unit = torch.stack(expected).float() / 255
    reference = 2 * F.interpolate(unit, size=(299, 299), mode="bilinear", align_corners=False) - 1
    assert torch.equal(fid_input(images, 229, "torch"), reference)


def test_greyscale_fid_input_is_repeated() -> None:
    grey = random_images(1)
    for options in ((None, "tensorflow"), (229, "torch")):
        assert torch.equal(fid_input(grey, *options), fid_input(grey.repeat(1, 3, 1, 1), *options))  # type: ignore[arg-type]


def test_wrong_fid_inputs_are_refused() -> None:
    with pytest.raises(ArcvqError, match=r"uint8.*torch\.float32"):
        fid_input(torch.zeros(1, 3, 8, 8), None, "tensorflow")
    with pytest.raises(ArcvqError, match="unknown FID interpolation 'cubic'"):
        fid_input(random_images(3), None, "cubic")  # type: ignore[arg-type]


def test_network_equals_torch_fidelity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random weights through torch-fidelity's own forward and through ours, from a file without the fc head."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        state = {key: value for key, value in InceptionNetwork().state_dict().items() if "tracked" not in key}
    save_file(state, tmp_path / "inception-2015-12-05.safetensors")
    torch.save(state | {"fc.weight": torch.zeros(1008, 2048), "fc.bias": torch.zeros(1008)}, tmp_path / "reference.pth")
    reference = FeatureExtractorInceptionV3(
        "inception-v3-compat", ["2048"], feature_extractor_weights_path=str(tmp_path / "reference.pth")
    )
    monkeypatch.setenv("ARCVQ_WEIGHTS", str(tmp_path))
    random_state = torch.get_rng_state()
    network = fid_network()
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not network.training
    with torch.no_grad():
        expected = reference(random_images(3))[0]
    features = fid_features(random_images(3), network)
    assert features.shape == (2, 2048)
    assert float(expected.std()) > 0
    assert torch.allclose(features, expected, atol=1e-6)
    monkeypatch.setattr("arcvq.metrics.fid.MIN_BATCH", 1)
    assert torch.allclose(fid_features(random_images(3), network), expected, atol=1e-5)


def test_missing_and_wrong_weights_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("ARCVQ_WEIGHTS", str(tmp_path))
    with pytest.raises(MissingWeights) as caught:
        fid_network()
    assert "FeatureExtractorInceptionV3" in str(caught.value)
    assert "inception-2015-12-05.safetensors" in str(caught.value)
    assert "ARCVQ_WEIGHTS" in str(caught.value)
    save_file({"Conv2d_1a_3x3.conv.weight": torch.zeros(1)}, tmp_path / "inception-2015-12-05.safetensors")
    with pytest.raises(ArcvqError, match=r"inception-2015-12-05\.safetensors.*Conv2d"):
        fid_network()


@pytest.mark.parametrize(("height", "width", "size"), [(32, 28, 229), (229, 300, 229), (500, 375, 64), (3, 1, 7)])
def test_emulated_resize_equals_pillow(height: int, width: int, size: int) -> None:
    generator = torch.Generator().manual_seed(2)
    images = torch.randint(0, 256, (2, 3, height, width), generator=generator, dtype=torch.uint8)
    assert torch.equal(emulate_pil_resize(images, size), pil_resize(images, size))
