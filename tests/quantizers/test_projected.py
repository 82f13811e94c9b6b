"""Codes that are frozen features behind one learned layer, wider than the codes."""

from typing import Any

import pytest
import torch

from arcvq import VQ, ArcvqError
from arcvq.quantizers import ProjectedVQ
from arcvq.quantizers.kmeans import kmeans, kmeans_by_class


def trained(quantizer: ProjectedVQ, steps: int = 5) -> ProjectedVQ:
    optimizer = torch.optim.Adam(quantizer.parameters(), lr=0.1)
    for _ in range(steps):
        out = quantizer(3 * torch.randn(60, 4))
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()
        quantizer.after_step(out)
    return quantizer


def test_features_keep_every_bit_and_layer_learns() -> None:
    quantizer = ProjectedVQ(4, 16, feature_dim=6)
    assert {name for name, _ in quantizer.named_parameters()} == {"projection.weight", "projection.bias"}
    features, codes = quantizer.basis.clone(), quantizer.codebook.detach().clone()
    trained(quantizer)
    assert torch.equal(quantizer.basis, features)
    assert ((quantizer.codebook.detach() - codes).norm(dim=1) > 0.1).all()


def test_tokens_decode_through_layer() -> None:
    quantizer = trained(ProjectedVQ(4, 16, feature_dim=6))
    out = quantizer(torch.randn(30, 4))
    assert quantizer.codebook.shape == (16, 4)
    assert torch.equal(quantizer.decode(out.tokens), out.quantized)
    torch.testing.assert_close(out.quantized, quantizer.projection(quantizer.basis)[out.tokens], rtol=1e-5, atol=1e-6)


def test_identity_layer_equals_vq_with_features_as_codes() -> None:
    weights = {"codebook_weight": 0.33, "commitment_weight": 1.0}
    quantizer, plain = ProjectedVQ(4, 16, feature_dim=4), VQ(4, 16, **weights)
    with torch.no_grad():
        quantizer.projection.weight.copy_(torch.eye(4))
        plain.codebook.copy_(quantizer.basis)
    latents = torch.randn(50, 4)
    ours, theirs = quantizer(latents), plain(latents)
    assert torch.equal(ours.tokens, theirs.tokens)
    assert torch.equal(ours.quantized, theirs.quantized)
    assert torch.equal(ours.loss, theirs.loss)


def test_layer_starts_without_bias_and_with_deviation_of_code_width() -> None:
    quantizer = ProjectedVQ(16, 8, feature_dim=512)
    assert quantizer.projection.weight.std().item() == pytest.approx(1 / 4, rel=0.05)
    assert not quantizer.projection.bias.any()


def test_features_of_images_become_basis() -> None:
    quantizer, features = ProjectedVQ(4, 16, feature_dim=6), torch.randn(300, 6)
    quantizer.init_from_features_(features, seed=3)
    torch.testing.assert_close(quantizer.basis, kmeans(features, 16, seed=3))
    again = ProjectedVQ(4, 16, feature_dim=6)
    again.init_from_features_(features, seed=3)
    assert torch.equal(again.basis, quantizer.basis)


def test_as_many_codes_as_features_keep_features() -> None:
    quantizer, features = ProjectedVQ(4, 40, feature_dim=6), torch.randn(40, 6)
    quantizer.init_from_features_(features)
    distance = torch.cdist(features, quantizer.basis, compute_mode="donot_use_mm_for_euclid_dist")
    assert distance.min(dim=1).values.max() < 1e-6
    assert distance.argmin(dim=1).unique().numel() == 40


def test_each_class_gets_its_share_of_codes() -> None:
    labels = torch.arange(3).repeat_interleave(50)
    features = 100.0 * labels[:, None] + torch.randn(150, 6)
    quantizer = ProjectedVQ(4, 11, feature_dim=6)
    quantizer.init_from_features_(features, labels=labels)
    nearest = (quantizer.basis.mean(dim=1) / 100).round().to(torch.int64)
    assert nearest.bincount().tolist() == [4, 4, 3]
    own = kmeans(features[:50], 4)
    torch.testing.assert_close(quantizer.basis[:4], own)


def test_many_clusters_start_at_distinct_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arcvq.quantizers.kmeans.MAX_CAREFUL_CLUSTERS", 8)
    points = torch.randn(200, 3)
    centres = kmeans(points, 20, iterations=0)
    assert (points[:, None] == centres).all(dim=2).any(dim=0).all()
    assert len(centres.unique(dim=0)) == 20
    errors = [torch.cdist(points, kmeans(points, 20, iterations=n)).amin(dim=1).square().sum() for n in (0, 1, 10)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.9 * errors[0]


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (torch.zeros(20, 5), None, r"expected features \(N, 6\), got shape \(20, 5\)"),
        (torch.full((20, 6), float("nan")), None, "not finite"),
        (torch.zeros(20, 6), torch.arange(19), "a label for each of 20 points"),
        (torch.zeros(20, 6), torch.arange(20), "20 classes need at least as many codes, got 16"),
    ],
)
def test_wrong_features_raise(features: Any, labels: Any, message: str) -> None:
    with pytest.raises(ArcvqError, match=message):
        ProjectedVQ(4, 16, feature_dim=6).init_from_features_(features, labels=labels)


def test_feature_dim_below_one_raises() -> None:
    with pytest.raises(ArcvqError, match="feature_dim must be at least 1, got 0"):
        ProjectedVQ(4, 16, feature_dim=0)


def test_classes_without_points_have_no_centres() -> None:
    found = kmeans_by_class(torch.tensor([[1.0], [9.0]]), torch.tensor([7, 2]), 2)
    assert found.tolist() == [[9.0], [1.0]]  # in the order of the labels
