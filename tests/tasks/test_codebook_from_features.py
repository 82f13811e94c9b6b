"""A frozen codebook is filled with features of training images."""

import pytest
import torch
from torch import Tensor, nn

from arcvq import ArcvqError
from arcvq.data import InMemoryImages
from arcvq.nets.features import FEATURES
from arcvq.quantizers import ProjectedVQ
from arcvq.tasks import init_codebook_from_features


class MeanAndCorner(nn.Module):
    """One feature (mean, first pixel) of each image."""

    feature_dim = 2

    def forward(self, images: Tensor) -> Tensor:
        return torch.stack([images.mean(dim=(1, 2, 3)), images[:, 0, 0, 0]], dim=1)[:, :, None, None]


def two_classes() -> InMemoryImages:
    """Dark images of class 0 and bright ones of class 1."""
    dark = torch.randint(0, 20, (30, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return InMemoryImages("toy", torch.cat([dark, 255 - dark]), torch.arange(2).repeat_interleave(30))


def test_encoder_by_name_fills_codebook_the_same_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FEATURES, "toy", lambda device: MeanAndCorner())
    filled = []
    for seed in (1, 1, 2):
        quantizer = ProjectedVQ(4, 8, feature_dim=2)
        init_codebook_from_features(quantizer, two_classes(), "toy", "cpu", seed)
        filled.append(quantizer.basis)
    assert torch.equal(filled[0], filled[1])
    assert not torch.equal(filled[0], filled[2])
    assert filled[0].abs().min() > 0.8  # every code is a dark or a bright image's feature


def test_each_class_gets_half_of_the_codes() -> None:
    quantizer = ProjectedVQ(4, 40, feature_dim=2, features_by_class=True)
    init_codebook_from_features(quantizer, two_classes(), MeanAndCorner())
    assert (quantizer.basis[:20, 0] < -0.8).all()
    assert (quantizer.basis[20:, 0] > 0.8).all()


def test_other_width_or_missing_classes_raise() -> None:
    quantizer, images = ProjectedVQ(4, 8, feature_dim=3), two_classes()
    with pytest.raises(ArcvqError, match="features have width 2, but the quantizer's feature_dim is 3"):
        init_codebook_from_features(quantizer, images, MeanAndCorner())
    unlabelled = InMemoryImages("toy", images.pixels)
    by_class = ProjectedVQ(4, 8, feature_dim=2, features_by_class=True)
    with pytest.raises(ArcvqError, match="toy has no classes"):
        init_codebook_from_features(by_class, unlabelled, MeanAndCorner())
