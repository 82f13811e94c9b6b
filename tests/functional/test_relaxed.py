"""Gumbel draws and their relaxation, and the divergence from uniform."""

import math

import pytest
import torch

from arcvq.functional import distance_logits, divergence_from_uniform, gumbel, relaxed_one_hot


def test_distance_logits_are_minus_squared_distances_and_never_positive() -> None:
    latents, codebook = 100 * torch.randn(40, 6), torch.randn(9, 6)
    expected = -torch.cdist(latents.double(), codebook.double()).square()
    torch.testing.assert_close(distance_logits(latents.double(), codebook.double()), expected)
    near = distance_logits(latents, latents + 1e-5)
    assert near.max() <= 0


def test_divergence_is_zero_when_uniform_and_log_k_when_one_hot() -> None:
    uniform, sure = torch.zeros(1, 8).log_softmax(dim=1), torch.tensor([[1e4] + [0.0] * 7]).log_softmax(dim=1)
    assert divergence_from_uniform(uniform).item() == pytest.approx(0.0, abs=1e-6)
    assert divergence_from_uniform(sure).item() == pytest.approx(math.log(8), rel=1e-6)


def test_relaxed_draw_is_one_hot_when_cold_and_uniform_when_hot() -> None:
    logits = torch.randn(50, 7)
    noise = gumbel(logits)
    cold = relaxed_one_hot(logits, 1e-6, noise)
    expected = torch.nn.functional.one_hot((logits + noise).argmax(dim=1), 7).float()
    torch.testing.assert_close(cold, expected)
    torch.testing.assert_close(relaxed_one_hot(logits, 1e7, noise), torch.full((50, 7), 1 / 7), rtol=1e-4, atol=0)


def test_gumbel_draws_follow_softmax() -> None:
    torch.manual_seed(0)
    logits = torch.tensor([0.0, 1.0, -2.0, 0.5]).expand(40_000, 4)
    drawn = (logits + gumbel(logits)).argmax(dim=1)
    share = torch.bincount(drawn, minlength=4) / 40_000
    torch.testing.assert_close(share, logits[0].softmax(dim=0), rtol=0, atol=0.01)
