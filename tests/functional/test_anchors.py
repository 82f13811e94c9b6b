"""CVQ-VAE's anchors and contrastive term, against closed forms and plain float64."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from arcvq.functional import Metric, anchor_rate, contrastive_loss, nearest_latents


def expected_similarities(codebook: Tensor, latents: Tensor, metric: Metric) -> Tensor:
    if metric == "cosine":
        return F.normalize(codebook, dim=1) @ F.normalize(latents, dim=1).t()
    return -torch.cdist(codebook, latents).square()


def test_anchor_rate_is_near_one_for_unused_code_and_zero_at_uniform_usage() -> None:
    rate = anchor_rate(torch.tensor([0.0, 1 / 4, 1e-4], dtype=torch.float64), 0.99)
    # K = 3 here: 10·K/(1 − .99) = 3000.
    expected = [math.exp(-1e-3), math.exp(-750 - 1e-3), math.exp(-0.3 - 1e-3)]
    torch.testing.assert_close(rate, torch.tensor(expected, dtype=torch.float64))
    assert anchor_rate(torch.full((512,), 1 / 512), 0.99).max().item() == 0.0  # e^−1000 in float32


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("masked", [False, True])
def test_nearest_latent_is_most_similar_valid_one(metric: Metric, masked: bool) -> None:
    codebook, latents = torch.randn(9, 4), torch.randn(50, 4)
    valid = torch.rand(50) > 0.7 if masked else None
    scores = expected_similarities(codebook, latents, metric)
    if valid is not None:
        scores[:, ~valid] = -math.inf
    found, score = nearest_latents(codebook, latents, valid, metric, "auto")
    assert torch.equal(found, latents[scores.argmax(dim=1)])
    order = scores.max(dim=1).values + (codebook.square().sum(dim=1) if metric == "euclidean" else 0)
    torch.testing.assert_close(score, order, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sample", [False, True])
def test_similarity_is_minus_infinity_without_valid_latents(sample: bool) -> None:
    codebook = torch.randn(3, 2)
    for latents, valid in ((torch.zeros(0, 2), None), (torch.randn(5, 2), torch.zeros(5, dtype=torch.bool))):
        _, score = nearest_latents(codebook, latents, valid, "cosine", "auto", sample)
        assert score.tolist() == [-math.inf] * 3


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_sampled_latent_follows_softmax_of_similarities(metric: Metric) -> None:
    torch.manual_seed(0)
    latents, code = torch.randn(5, 3), torch.randn(1, 3)
    valid = torch.tensor([True, True, False, True, True])
    found, mass = nearest_latents(code.expand(40_000, 3), latents, valid, metric, "auto", sample=True)
    share = torch.stack([(found == row).all(dim=1).float().mean() for row in latents])
    logits = expected_similarities(code, latents, metric)[0].masked_fill(~valid, -math.inf)
    torch.testing.assert_close(share, logits.softmax(dim=0), rtol=0, atol=0.01)
    # The second result, which merges shards, is log Σ exp up to a term of the code alone.
    alone = logits.logsumexp(dim=0) + (code.square().sum() if metric == "euclidean" else 0)
    torch.testing.assert_close(mass, alone.expand(40_000), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("tokens", [3, 25, 40])
def test_contrastive_loss_is_cross_entropy_of_nearest_against_farthest(metric: Metric, tokens: int) -> None:
    codebook = torch.randn(8, 4, dtype=torch.float64, requires_grad=True)
    latents = torch.randn(tokens, 4, dtype=torch.float64, requires_grad=True)
    ordered = expected_similarities(codebook, latents.detach(), metric).sort(dim=1).values
    positive = ordered[:, -max(1, tokens // 8) :].mean(dim=1, keepdim=True)
    logits = torch.cat([positive, ordered[:, : tokens // 2]], dim=1) / 0.07
    expected = F.cross_entropy(logits, torch.zeros(8, dtype=torch.int64))
    loss = contrastive_loss(latents, codebook, metric)
    torch.testing.assert_close(loss, expected)
    (ours,) = torch.autograd.grad(loss, codebook)
    (theirs,) = torch.autograd.grad(expected, codebook)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)
    assert not torch.autograd.grad(contrastive_loss(latents, codebook, metric), latents, allow_unused=True)[0]


def test_contrastive_loss_ignores_padding() -> None:
    codebook, latents = torch.randn(6, 4), torch.randn(30, 4)
    valid = torch.rand(30) > 0.4
    expected = contrastive_loss(latents[valid], codebook)
    torch.testing.assert_close(contrastive_loss(latents, codebook, valid=valid), expected)
    assert contrastive_loss(latents, codebook, valid=torch.zeros(30, dtype=torch.bool)).item() == 0.0
    assert contrastive_loss(latents[:0], codebook).item() == 0.0
