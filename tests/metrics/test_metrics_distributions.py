"""KID, Inception Score, precision and recall of features, against closed forms, plain oracles and torch-fidelity."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch_fidelity.metric_isc import isc_features_to_metric
from torch_fidelity.metric_kid import kid_features_to_metric
from torch_fidelity.metric_prc import prc_features_to_metric

from arcvq.errors import ArcvqError, Diverged
from arcvq.metrics import inception_score, kernel_distance, precision_recall


def normal(count: int, width: int = 8, seed: int = 0, shift: float = 0.0) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed)) + shift


# ---- KID ----------------------------------------------------------------------------------------------------------------


def kid_oracle(x: np.ndarray, y: np.ndarray) -> float:
    """The unbiased estimate as sums over pairs, one by one."""

    def kernel(a: np.ndarray, b: np.ndarray) -> float:
        return float((a @ b / len(a) + 1.0) ** 3)

    pairs = [(i, j) for i in range(len(x)) for j in range(len(x))]
    different = [(i, j) for i, j in pairs if i != j]
    within = [sum(kernel(side[i], side[j]) for i, j in different) / len(different) for side in (x, y)]
    return sum(within) - 2 * sum(kernel(x[i], y[j]) for i, j in pairs) / len(pairs)


def test_kid_of_whole_sets_equals_sum_over_pairs() -> None:
    real, fake = normal(20), normal(20, seed=1, shift=0.3)
    expected = kid_oracle(real.double().numpy(), fake.double().numpy())
    found = kernel_distance(real, fake, subsets=2, subset_size=20)
    assert found.mean == pytest.approx(expected, rel=1e-10)
    assert found.std == pytest.approx(0.0, abs=1e-12)  # each subset is the whole set


def test_kid_equals_torch_fidelity_on_the_same_subsets() -> None:
    real, fake = normal(90), normal(70, seed=1, shift=0.2)
    expected = kid_features_to_metric(
        fake.double(), real.double(), kid_subsets=7, kid_subset_size=30, rng_seed=2020, verbose=False
    )
    found = kernel_distance(real, fake, subsets=7, subset_size=30)
    assert found.mean == pytest.approx(expected["kernel_inception_distance_mean"], rel=1e-10)
    assert found.std == pytest.approx(expected["kernel_inception_distance_std"], rel=1e-10)


def test_kid_is_zero_for_one_law_and_grows_with_a_shift() -> None:
    real = normal(4000)
    same = kernel_distance(real, normal(4000, seed=1), subsets=40, subset_size=200)
    assert abs(same.mean) < same.std
    shifted = [
        kernel_distance(real, normal(4000, seed=1, shift=s), subsets=40, subset_size=200).mean for s in (0.2, 0.5, 1)
    ]
    assert all(low < high for low, high in pairwise([same.mean + 3 * same.std, *shifted]))


def test_kid_of_two_normal_laws_has_their_expectation_for_any_subset_size() -> None:
    mean = 0.5
    # E (xy + 1)³ of independent x, y is 1 + 3 m1 m1' + 3 m2 m2' + m3 m3', with the raw moments of N(0, 1) and N(0.5, 1).
    zero, moved = (0.0, 1.0, 0.0), (mean, mean**2 + 1, mean**3 + 3 * mean)
    expected = sum(weight * (a - b) ** 2 for weight, a, b in zip((3, 3, 1), zero, moved))
    for size in (5, 50):
        estimate = kernel_distance(
            normal(3_000, 1), normal(3_000, 1, seed=1, shift=mean), subsets=3_000 // size, subset_size=size
        )
        error = estimate.std / (3_000 // size) ** 0.5
        assert estimate.mean == pytest.approx(expected, abs=4 * error)


def test_kid_subsets_follow_the_seed() -> None:
    real, fake = normal(50), normal(50, seed=1)
    values = [kernel_distance(real, fake, subsets=3, subset_size=10, seed=seed).mean for seed in (1, 1, 2)]
    assert values[0] == values[1] != values[2]


# ---- Inception Score ----------------------------------------------------------------------------------------------------


def test_inception_score_of_uniform_predictions_is_one() -> None:
    score = inception_score(torch.zeros(100, 7), splits=5)
    assert score.mean == pytest.approx(1.0)
    assert score.std == pytest.approx(0.0, abs=1e-12)


def test_inception_score_of_balanced_certain_predictions_is_the_number_of_classes() -> None:
    labels = torch.arange(60) % 6
    assert inception_score(1e4 * torch.eye(6)[labels], splits=1).mean == pytest.approx(6.0)
    # In the order of classes, each of six parts has one class.
    in_order = 1e4 * torch.eye(6)[labels.sort().values]
    assert inception_score(in_order, splits=6, seed=None).mean == pytest.approx(1.0)
    assert inception_score(in_order, splits=2).mean > 5


def test_inception_score_equals_torch_fidelity() -> None:
    logits = 3 * normal(103, 9)
    for seed in (2020, None):
        expected = isc_features_to_metric(logits, splits=10, shuffle=seed is not None, rng_seed=seed or 0)
        found = inception_score(logits, seed=seed)
        assert found.mean == pytest.approx(expected["inception_score_mean"], rel=1e-10)
        assert found.std == pytest.approx(expected["inception_score_std"], rel=1e-8)


# ---- precision and recall -----------------------------------------------------------------------------------------------


def oracle_precision_recall(real: torch.Tensor, fake: torch.Tensor, k: int) -> tuple[float, float]:
    """Both shares from all distances, one by one."""

    def squared(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a.double()[:, None] - b.double()[None]).square().sum(dim=2)

    def covered(inside: torch.Tensor, balls: torch.Tensor) -> float:
        radii = squared(balls, balls).sort(dim=1).values[:, k]  # itself is at place 0
        return float((squared(inside, balls) <= radii).any(dim=1).double().mean())

    return covered(fake, real), covered(real, fake)


@pytest.mark.parametrize("block", [4096, 7])
@pytest.mark.parametrize("k", [1, 3])
def test_precision_and_recall_equal_all_distances(k: int, block: int) -> None:
    real, fake = normal(60), 0.9 * normal(45, seed=1, shift=0.8)
    expected = oracle_precision_recall(real, fake, k)
    assert tuple(precision_recall(real, fake, k=k, block=block)) == pytest.approx(expected)
    assert 0 < expected[1] < expected[0] < 1


def test_precision_and_recall_equal_torch_fidelity() -> None:
    real, fake = normal(60), 0.9 * normal(45, seed=1, shift=0.8)
    expected = prc_features_to_metric(
        fake.double(), real.double(), prc_neighborhood=3, prc_batch_size=20, save_cpu_ram=False, verbose=False
    )
    found = precision_recall(real, fake)
    assert found.precision == pytest.approx(expected["precision"])
    assert found.recall == pytest.approx(expected["recall"])


def test_identical_sets_have_precision_and_recall_one_even_with_copies_far_from_the_origin() -> None:
    features = 1000 + normal(40)
    features[:10] = features[0]  # their balls have radius 0
    assert precision_recall(features, features.flip(0), block=16) == (1.0, 1.0)


def test_copies_of_a_real_image_are_precise_and_recall_only_it() -> None:
    real = normal(40)
    assert precision_recall(real, real[:1].repeat(10, 1)) == (1.0, 1 / 40)


def test_far_clusters_have_precision_and_recall_zero() -> None:
    assert precision_recall(normal(30), normal(30, seed=1, shift=100.0)) == (0.0, 0.0)


def test_part_of_the_law_is_precise_with_low_recall() -> None:
    two_clusters = torch.cat([normal(50), normal(50, seed=1, shift=100.0)])
    assert precision_recall(two_clusters, normal(50)) == (1.0, 0.5)
    assert precision_recall(normal(50), two_clusters) == (0.5, 1.0)


# ---- wrong input --------------------------------------------------------------------------------------------------------


def test_wrong_features_are_refused() -> None:
    with pytest.raises(ArcvqError, match=r"\(N, D\).*\(3, 2, 2\)"):
        kernel_distance(torch.zeros(3, 2, 2), torch.zeros(3, 2))
    with pytest.raises(ArcvqError, match=r"one width.*8.*5"):
        precision_recall(normal(9), normal(9, 5))
    with pytest.raises(Diverged, match="not finite"):
        inception_score(torch.full((20, 3), torch.nan))
    with pytest.raises(ArcvqError, match=r"more than 3 features.*3 real and 9 generated"):
        precision_recall(normal(3), normal(9))
    with pytest.raises(ArcvqError, match="4 in 10"):
        inception_score(normal(4))
    with pytest.raises(ArcvqError, match=r"at least 2 features.*subsets of 1"):
        kernel_distance(normal(1), normal(9))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_gives_the_numbers_of_the_cpu() -> None:
    real, fake = normal(500, 32), normal(400, 32, seed=1, shift=0.2)
    assert precision_recall(real.cuda(), fake.cuda(), block=64) == precision_recall(real, fake)
    assert kernel_distance(real.cuda(), fake.cuda(), subset_size=50).mean == pytest.approx(
        kernel_distance(real, fake, subset_size=50).mean, rel=1e-9
    )
    assert inception_score(real.cuda()).mean == pytest.approx(inception_score(real).mean, rel=1e-9)
