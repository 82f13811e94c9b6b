"""k-means, and the codebook's init from latents."""

from typing import Any

import pytest
import torch

from arcvq import VQ, ArcVQ, ArcvqError
from arcvq.quantizers.kmeans import kmeans, kmeans_plus_plus


def separated_clusters() -> tuple[torch.Tensor, torch.Tensor]:
    centres = 10 * torch.eye(5)
    return centres, centres.repeat(30, 1) + 0.1 * torch.randn(150, 5)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_well_separated_clusters_are_found(metric: str) -> None:
    centres, points = separated_clusters()
    found = kmeans(points, 5, metric=metric, iterations=20)
    expected = centres if metric == "euclidean" else torch.eye(5)
    nearest = torch.cdist(expected, found).min(dim=1)
    assert nearest.indices.unique().numel() == 5
    assert nearest.values.max() < 0.1


@pytest.mark.parametrize("seed", range(5))
def test_kmeans_plus_plus_picks_point_of_every_cluster(seed: int) -> None:
    """Uniformly drawn rows would almost surely miss some of the forty clusters."""
    cluster = torch.arange(40).repeat(25)
    points = 10 * torch.eye(40)[cluster] + 0.001 * torch.randn(1000, 40)
    rows = kmeans_plus_plus(points, 40, torch.Generator().manual_seed(seed))
    assert cluster[rows].unique().numel() == 40


def test_kmeans_plus_plus_picks_distinct_points_first() -> None:
    points = torch.randn(5, 3).repeat(20, 1)
    rows = kmeans_plus_plus(points, 8, torch.Generator().manual_seed(0))
    assert len(rows) == 8
    assert len(points[rows].unique(dim=0)) == 5


def test_error_never_grows_and_is_zero_with_cluster_per_point() -> None:
    points = torch.randn(64, 3)
    errors = [
        torch.cdist(points, kmeans(points, 8, iterations=n)).min(dim=1).values.square().sum() for n in (0, 1, 3, 10)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.9 * errors[0]
    assert torch.cdist(points, kmeans(points, 64)).min(dim=1).values.max() < 1e-3


def test_spherical_centres_have_norm_one() -> None:
    found = kmeans(torch.randn(100, 4), 10, metric="cosine")
    torch.testing.assert_close(found.norm(dim=1), torch.ones(10))


def test_more_clusters_than_points_give_distinct_centres() -> None:
    found = kmeans(torch.randn(5, 4), 12)
    assert found.shape == (12, 4)
    distances = torch.cdist(found, found) + torch.eye(12)
    assert distances.min() > 1e-5


def test_empty_cluster_moves_to_farthest_point() -> None:
    """Of a hundred points ninety-seven are the same: three of the four centres must be elsewhere."""
    distinct = 10 * torch.eye(4)
    points = torch.cat([distinct[:1].repeat(97, 1), distinct[1:]])
    found = kmeans(points, 4, iterations=10)
    assert torch.cdist(distinct, found).min(dim=1).values.max() < 1e-3


def test_repeated_points_give_no_nan() -> None:
    assert torch.isfinite(kmeans(torch.ones(20, 4), 6)).all()


def test_same_seed_gives_same_centres() -> None:
    points = torch.randn(100, 4)
    assert torch.equal(kmeans(points, 9, seed=3), kmeans(points, 9, seed=3))
    assert not torch.equal(kmeans(points, 9, seed=3), kmeans(points, 9, seed=4))


@pytest.mark.parametrize("options", [{}, {"heads": 2}, {"code_dim": 3}])
@pytest.mark.parametrize("cls", [VQ, ArcVQ])
def test_kmeans_init_uses_all_codes(cls: type[VQ], options: dict[str, Any]) -> None:
    quantizer = cls(4, 16, init="kmeans", **options)
    latents = torch.randn(8, 4, 6, 6)
    quantizer.kmeans_init_(latents)
    out = quantizer(latents)
    assert out.stats["usage"].item() == 1.0


def test_arcvq_kmeans_init_lies_on_unit_sphere() -> None:
    quantizer = ArcVQ(4, 16, init="kmeans")
    quantizer.kmeans_init_(7 * torch.randn(8, 4, 6, 6))
    torch.testing.assert_close(quantizer.codebook.detach().norm(dim=1), torch.ones(16))


def test_training_before_kmeans_init_raises_and_evaluation_works() -> None:
    quantizer = VQ(4, 16, init="kmeans")
    with pytest.raises(ArcvqError, match=r"call kmeans_init_\(latents\) before training"):
        quantizer(torch.randn(5, 4))
    quantizer.eval()(torch.randn(5, 4))


def test_loaded_codebook_stays_initialized() -> None:
    quantizer = VQ(4, 16, init="kmeans")
    quantizer.kmeans_init_(torch.randn(60, 4))
    loaded = VQ(4, 16, init="kmeans")
    loaded.load_state_dict(quantizer.state_dict())
    loaded(torch.randn(5, 4))


def test_kmeans_init_without_latents_raises() -> None:
    with pytest.raises(ArcvqError, match="at least one point"):
        VQ(4, 16, init="kmeans").kmeans_init_(torch.zeros(0, 4))


def test_kmeans_init_with_nan_latents_raises() -> None:
    with pytest.raises(ArcvqError, match="non-finite"):
        VQ(4, 16, init="kmeans").kmeans_init_(torch.full((5, 4), float("nan")))
