import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch_fidelity import feature_extractor_vgg16

from arcvq.errors import ArcvqError
from arcvq.metrics import MissingWeights, vgg_features, vgg_network
from arcvq.metrics import vgg as module


def test_features_equal_torch_fidelity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random weights, without a file of 500 MB."""
    import torchvision

    with torch.device("meta"):
        reference = torchvision.models.vgg16()
    reference.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(0)
    for parameter in reference.parameters():
        bound = math.sqrt(6 / parameter[0].numel()) if parameter.ndim > 1 else 0.1
        parameter.data.uniform_(-bound, bound, generator=generator)
    state = dict(reference.state_dict())
    monkeypatch.setattr(feature_extractor_vgg16, "torchvision_load_pretrained_vgg16", lambda **_: reference)
    extractor = feature_extractor_vgg16.FeatureExtractorVGG16("vgg16", ["fc2_relu"])
    monkeypatch.setattr(module, "load_weights", lambda **_: (state, "random"))
    images = torch.randint(0, 256, (2, 3, 32, 28), generator=generator, dtype=torch.uint8)
    with torch.no_grad():
        (expected,) = extractor(images)
    network = vgg_network()
    features = vgg_features(images, network)
    assert features.shape == (2, 4096)
    assert float(expected.std()) > 0.01
    assert torch.allclose(features, expected, atol=1e-5 * float(expected.abs().max()))
    grey = images[:1, :1]
    assert torch.equal(vgg_features(grey, network), vgg_features(grey.repeat(1, 3, 1, 1), network))


def test_missing_and_wrong_weights_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("ARCVQ_WEIGHTS", str(tmp_path))
    with pytest.raises(MissingWeights, match=r"vgg16\.safetensors"):
        vgg_network()
    # The file of LPIPS has only the convolutions.
    save_file({"features.0.weight": torch.zeros(64, 3, 3, 3)}, tmp_path / "vgg16.safetensors")
    with pytest.raises(ArcvqError, match=r"vgg16\.safetensors does not fit the network \(it lacks classifier"):
        vgg_network()


def test_wrong_images_are_refused() -> None:
    with pytest.raises(ArcvqError, match=r"uint8.*torch\.float32"):
        vgg_features(torch.zeros(1, 3, 8, 8), torch.nn.Identity())
