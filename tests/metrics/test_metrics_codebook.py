import math

import pytest
import torch

from arcvq.errors import ArcvqError
from arcvq.metrics import (
    bits_per_image,
    codebook,
    coverage,
    geometry,
    near_duplicate_shares,
    neighbours,
    norms,
    perplexity,
    uniformity,
    usage,
)


def test_usage_and_perplexity_of_known_counts() -> None:
    assert usage(torch.tensor([3, 0, 1, 0])) == 0.5
    assert perplexity(torch.full((64,), 7)) == pytest.approx(64.0)
    assert perplexity(torch.tensor([9, 0, 0])) == pytest.approx(1.0)
    assert perplexity(torch.tensor([1, 1, 0, 2])) == pytest.approx(math.exp(1.5 * math.log(2)))


def test_bits_per_image_is_tokens_times_log2_of_size() -> None:
    assert bits_per_image(64, 512) == 576.0
    assert bits_per_image(49, 1) == 0.0
    with pytest.raises(ArcvqError, match="codebook_size is 0"):
        bits_per_image(1, 0)


def test_coverage_counts_most_frequent_codes() -> None:
    assert coverage(torch.full((100,), 5)) == {50: 50, 90: 90, 99: 99}
    assert coverage(torch.tensor([0, 100, 0])) == {50: 1, 90: 1, 99: 1}
    assert coverage(torch.tensor([50, 1, 40, 9])) == {50: 1, 90: 2, 99: 3}


@pytest.mark.parametrize("function", [usage, perplexity, coverage])
def test_wrong_counts_are_refused(function: object) -> None:
    assert callable(function)
    with pytest.raises(ArcvqError, match="at least one token"):
        function(torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ArcvqError, match="must not be negative"):
        function(torch.tensor([3, -1]))
    with pytest.raises(ArcvqError, match=r"\(K,\).*\(2, 2\)"):
        function(torch.ones(2, 2))


def simplex(count: int) -> torch.Tensor:
    """`count` unit vectors with all cosines -1/(count - 1)."""
    centred = torch.eye(count, dtype=torch.float64) - 1.0 / count
    return centred / centred.norm(dim=1, keepdim=True)


def test_uniformity_equals_closed_forms() -> None:
    assert uniformity(torch.tensor([[2.0, 0.0], [-5.0, 0.0]])) == pytest.approx(-8.0)  # squared gap 4
    assert uniformity(3.0 * torch.eye(9)) == pytest.approx(-4.0)  # squared gap 2
    assert uniformity(simplex(6)) == pytest.approx(-2 * (2 + 2 / 5))
    assert uniformity(torch.ones(5, 3)) == pytest.approx(0.0)


def test_neighbours_equal_direct_computation_in_any_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = torch.randn(50, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    monkeypatch.setattr(codebook, "BLOCK_ROWS", 7)
    found = neighbours(codes)
    distances = torch.cdist(codes, codes, compute_mode="donot_use_mm_for_euclid_dist").fill_diagonal_(torch.inf)
    directions = codes / codes.norm(dim=1, keepdim=True)
    cosines = (directions @ directions.T).fill_diagonal_(-torch.inf)
    assert torch.allclose(found.distance, distances.amin(1))
    assert torch.allclose(found.cosine, cosines.amax(1))
    gaps = torch.cdist(directions, directions, compute_mode="donot_use_mm_for_euclid_dist").square()
    potential = (-2 * gaps)[~torch.eye(50, dtype=torch.bool)].exp().mean().log()
    assert found.uniformity == pytest.approx(float(potential))


def test_equal_codes_have_distance_zero() -> None:
    assert neighbours(torch.full((3, 8), 1e6)).distance.tolist() == [0.0, 0.0, 0.0]


def test_norms_of_known_codes() -> None:
    codes = torch.tensor([[3.0, 4.0], [0.0, 5.0], [5.0, 0.0]])
    assert norms(codes) == pytest.approx(
        {"mean": 5, "min": 5, "q05": 5, "median": 5, "q95": 5, "max": 5, "spread": 0}, abs=1e-12
    )
    assert norms(torch.tensor([[1.0], [3.0]]))["spread"] == pytest.approx(0.5)
    assert norms(torch.zeros(2, 2))["spread"] == 0.0


def test_near_duplicates_by_cosine_and_by_distance() -> None:
    # Codes 0 and 1 have one direction but are far apart; 2 and 3 are close; 4 has no duplicate.
    codes = torch.tensor([[1.0, 0, 0], [9.0, 0, 0], [0, 5.0, 0], [0, 5.0, 0.01], [0, 0, -4.0]])
    assert near_duplicate_shares(codes) == pytest.approx({"cosine": 0.8, "distance": 0.4})
    assert near_duplicate_shares(torch.eye(4)) == {"cosine": 0.0, "distance": 0.0}


def test_geometry_has_all_statistics() -> None:
    result = geometry(2.0 * torch.eye(5).requires_grad_())
    assert result == pytest.approx(
        {f"norm_{key}": 2.0 for key in ("mean", "min", "q05", "median", "q95", "max")}
        | {"norm_spread": 0.0, "uniformity": -4.0, "near_duplicate_share": 0.0, "near_duplicate_share_distance": 0.0}
        | {"nearest_neighbour_mean": 8**0.5, "nearest_neighbour_median": 8**0.5}
    )
    assert geometry(torch.ones(1, 4))["norm_mean"] == 2.0
    assert "uniformity" not in geometry(torch.ones(1, 4))


def test_wrong_codebooks_are_refused() -> None:
    with pytest.raises(ArcvqError, match="at least 2 codes, but the codebook has 1"):
        uniformity(torch.ones(1, 3))
    with pytest.raises(ArcvqError, match=r"a codebook is \(K, D\) .* got shape \(3,\)"):
        norms(torch.ones(3))
    with pytest.raises(ArcvqError, match="not finite"):
        geometry(torch.tensor([[1.0], [float("nan")]]))
