"""Features of images from a frozen encoder, averaged to a small grid."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from arcvq import ArcvqError
from arcvq.data import InMemoryImages, to_unit
from arcvq.metrics import MissingWeights
from arcvq.metrics.lpips import TRUNKS, untrained_network
from arcvq.nets.features import FEATURES, feature_encoder, image_features


class Blocks(nn.Module):
    """Each block of 2 × 2 pixels is a feature vector of width 4."""

    feature_dim = 4

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.pixel_unshuffle(images, 2)


def toy_images(number: int, side: int = 16) -> InMemoryImages:
    generator = torch.Generator().manual_seed(0)
    return InMemoryImages("toy", torch.randint(256, (number, 1, side, side), dtype=torch.uint8, generator=generator))


def test_features_are_averaged_to_grid_of_four() -> None:
    images = toy_images(3)
    features, owners = image_features(Blocks(), images)
    assert features.shape == (48, 4)
    assert owners.bincount().tolist() == [16, 16, 16]
    maps = Blocks()(to_unit(images.pixels))  # (3, 4, 8, 8)
    first = int(owners[0])
    torch.testing.assert_close(features[0], maps[first, :, :2, :2].mean(dim=(1, 2)))
    torch.testing.assert_close(features[1], maps[first, :, :2, 2:4].mean(dim=(1, 2)))


def test_smaller_maps_are_kept() -> None:
    images = toy_images(2, side=4)
    features, owners = image_features(Blocks(), images)
    assert features.shape == (8, 4)
    expected = Blocks()(to_unit(images.pixels))[owners[0]].flatten(1).t()
    torch.testing.assert_close(features[:4], expected)


def test_seed_draws_images_without_replacement() -> None:
    images = toy_images(10)
    drawn = [image_features(Blocks(), images, number=4, seed=seed, batch_size=3) for seed in (1, 1, 2)]
    owners = [each.unique().tolist() for _, each in drawn]
    assert all(len(each) == 4 for each in owners)
    assert torch.equal(drawn[0][0], drawn[1][0])
    assert owners[0] == owners[1] != owners[2]


@pytest.mark.parametrize("batch_size", [1, 64])
def test_batch_size_does_not_change_features(batch_size: int) -> None:
    features, owners = image_features(Blocks(), toy_images(5), batch_size=batch_size)
    expected, expected_owners = image_features(Blocks(), toy_images(5), batch_size=2)
    torch.testing.assert_close(features, expected)
    assert torch.equal(owners, expected_owners)


def test_vgg16_gives_features_of_its_last_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = untrained_network("vgg")
    generator = torch.Generator().manual_seed(0)
    state = {
        name: 0.05 * torch.randn(value.shape, generator=generator) for name, value in network.net.state_dict().items()
    }
    save_file(state, tmp_path / TRUNKS["vgg"].file)
    monkeypatch.setenv("ARCVQ_WEIGHTS", str(tmp_path))
    encoder = feature_encoder("vgg16")
    assert not encoder.training
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    images = torch.rand(2, 1, 32, 48, generator=generator) * 2 - 1
    features = encoder(images)
    assert features.shape == (2, encoder.feature_dim, 2, 3)
    network.net.load_state_dict(state)
    expected = network.features((images.expand(-1, 3, -1, -1) + 1) / 2)[-1]
    torch.testing.assert_close(features, expected)


def test_missing_weights_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARCVQ_WEIGHTS", raising=False)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(MissingWeights, match="vgg16"):
        feature_encoder("vgg16")


def test_registered_encoder_is_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FEATURES, "blocks", lambda device: Blocks())
    assert isinstance(feature_encoder("blocks"), Blocks)
    with pytest.raises(ArcvqError, match="unknown features 'clip': expected one of blocks, vgg16"):
        feature_encoder("clip")


def test_empty_set_of_images_raises() -> None:
    with pytest.raises(ArcvqError, match="at least one image, and toy has 0"):
        image_features(Blocks(), toy_images(0))
