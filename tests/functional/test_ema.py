"""Running means of latents: the update and its smoothing."""

import pytest
import torch

from arcvq.functional import ema_update_, smoothed_counts, token_sums


def test_token_sums_equal_sums_by_code_without_padding() -> None:
    latents, tokens = torch.randn(200, 3), torch.randint(-1, 5, (200,))
    sums = token_sums(latents, tokens, 5)
    for code in range(5):
        torch.testing.assert_close(sums[code], latents[tokens == code].sum(dim=0), rtol=1e-5, atol=1e-5)
    assert token_sums(latents.bfloat16(), tokens, 5).dtype == torch.float32


@pytest.mark.parametrize("epsilon", [0.0, 1e-5, 0.5])
def test_smoothing_keeps_total_and_raises_smallest_count(epsilon: float) -> None:
    counts = torch.tensor([0.0, 1.0, 7.0, 100.0], dtype=torch.float64)
    smoothed = smoothed_counts(counts, epsilon)
    torch.testing.assert_close(smoothed.sum(), counts.sum())
    expected = (counts + epsilon) / (108 + 4 * epsilon) * 108
    torch.testing.assert_close(smoothed, expected)
    assert (smoothed[0] > 0) == (epsilon > 0)


def test_one_update_equals_hand_computed_values() -> None:
    codebook = torch.tensor([[4.0], [5.0]], dtype=torch.float64)
    counts, sums = torch.tensor([2.0, 1.0], dtype=torch.float64), torch.tensor([[8.0], [5.0]], dtype=torch.float64)
    ema_update_(codebook, counts, sums, torch.tensor([3, 0]), torch.tensor([[6.0], [0.0]]), decay=0.75, epsilon=0.1)
    # N = .75·2 + .25·3 = 2.25 and .75; m = .75·8 + .25·6 = 7.5. The smoothed count is not stored.
    assert counts.tolist() == [2.25, 0.75]
    assert sums.tolist() == [[7.5], [3.75]]
    assert codebook[0].item() == pytest.approx(7.5 / (2.35 / 3.2 * 3.0), rel=1e-12)
    assert codebook[1].item() == 5.0  # without tokens it does not move


def test_codes_converge_to_means_of_fixed_tokens() -> None:
    latents, tokens = torch.randn(60, 2, dtype=torch.float64), torch.arange(60) % 3
    codebook = torch.randn(3, 2, dtype=torch.float64)
    counts, sums = torch.ones(3, dtype=torch.float64), codebook.clone()
    for _ in range(400):
        ema_update_(codebook, counts, sums, torch.full((3,), 20), token_sums(latents, tokens, 3), 0.9, 1e-9)
    means = torch.stack([latents[tokens == code].mean(dim=0) for code in range(3)])
    torch.testing.assert_close(codebook, means, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(counts, torch.full((3,), 20.0, dtype=torch.float64))
