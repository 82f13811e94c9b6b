"""CVQ: unused codes move onto latents, used ones stay."""

import math
from typing import Any

import pytest
import torch

from arcvq import Arc, ArcvqError, Ball
from arcvq.functional import Metric, contrastive_loss
from arcvq.quantizers import CVQ, Contrastive

ANCHORS = ["closest", "random", "probrandom"]


def with_codes(codes: torch.Tensor, **options: Any) -> CVQ:
    quantizer = CVQ(codes.shape[1], codes.shape[0], **options)
    with torch.no_grad():
        quantizer.codebook.copy_(codes)
    return quantizer


def test_defaults_are_the_authors() -> None:
    config = CVQ(4, 8).config
    assert (config.metric, config.init, config.anchor, config.decay) == ("cosine", "uniform", "closest", 0.99)
    assert (config.commitment_weight, config.first_batch, config.contrastive) == (0.25, False, None)


@pytest.mark.parametrize("anchor", ANCHORS)
def test_unused_codes_move_onto_latents_and_used_ones_stay(anchor: Any) -> None:
    codes = torch.cat([torch.eye(4), -torch.eye(4)])
    quantizer = with_codes(codes, anchor=anchor)
    latents = torch.eye(4).repeat(20, 1) + 0.01 * torch.randn(80, 4)
    out = quantizer(latents)
    assert out.tokens.max() < 4
    quantizer.after_step(out)
    torch.testing.assert_close(quantizer.usage, torch.tensor([0.0025] * 4 + [0.0] * 4))
    moved = quantizer.codebook.detach()
    # Used twice as often as uniformly: a = exp(−20) after the first step.
    torch.testing.assert_close(moved[:4], codes[:4], rtol=0, atol=1e-7)
    for row, start in zip(moved[4:], codes[4:]):
        anchors = (row - (1 - math.exp(-1e-3)) * start) / math.exp(-1e-3)
        assert (anchors - latents).norm(dim=1).min() < 1e-5


def test_closest_anchor_is_most_similar_latent() -> None:
    codes = torch.tensor([[1.0, 0.0], [-1.0, 0.1]])
    latents = torch.tensor([[2.0, 0.0], [2.0, -1.0], [0.1, 3.0], [2.0, 0.5]])
    quantizer = with_codes(codes)
    out = quantizer(latents)
    quantizer.after_step(out)
    # Code 1 has the third latent, so none is unused: its usage is .25·.01, and a = exp(−10·2·.25).
    rate = math.exp(-5 - 1e-3)
    torch.testing.assert_close(quantizer.codebook.detach()[1], (1 - rate) * codes[1] + rate * latents[2])


def test_sampled_anchor_follows_softmax_of_similarities() -> None:
    code, latents = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 2.0], [-1.0, 0.0]])
    quantizer = with_codes(code.repeat(5000, 1), anchor="probrandom")
    quantizer.after_step(quantizer(latents))
    moved = quantizer.codebook.detach()[1:]  # the first of these equal codes has all tokens, and stays
    nearest = torch.cdist(moved, latents).argmin(dim=1)
    share = torch.bincount(nearest, minlength=3) / len(moved)
    torch.testing.assert_close(share, torch.tensor([1.0, 0.0, -1.0]).softmax(dim=0), rtol=0, atol=0.03)


def test_random_pool_is_filled_with_latents() -> None:
    quantizer, latents = CVQ(4, 50, anchor="random"), torch.randn(200, 4)
    quantizer.after_step(quantizer(latents))
    slots, drawn = (quantizer.pool.unsqueeze(1) == latents).all(dim=2).nonzero().unbind(dim=1)
    assert slots.tolist() == list(range(50))
    assert len(drawn.unique()) > 30  # 44 are expected of 50 draws from 200


def test_code_with_uniform_usage_keeps_every_bit() -> None:
    codes = torch.eye(4)
    quantizer = with_codes(codes)
    for _ in range(400):  # until the running usage has converged
        quantizer.after_step(quantizer(3 * torch.eye(4)))
    before = quantizer.codebook.detach().clone()
    quantizer.after_step(quantizer(3 * torch.eye(4)))
    assert torch.equal(quantizer.codebook.detach(), before)


@pytest.mark.parametrize("anchor", ANCHORS)
def test_evaluation_changes_no_state(anchor: Any) -> None:
    quantizer = CVQ(4, 8, anchor=anchor).eval()
    before = {name: value.clone() for name, value in quantizer.state_dict().items()}
    quantizer(torch.randn(50, 4))
    assert all(torch.equal(value, before[name]) for name, value in quantizer.state_dict().items())


@pytest.mark.parametrize("anchor", ANCHORS)
def test_collapsed_codebook_recovers_usage(anchor: Any) -> None:
    quantizer = with_codes(torch.nn.functional.normalize(torch.randn(32, 4) * 0.01 - 1, dim=1), anchor=anchor)
    latents = torch.randn(300, 4)
    before = quantizer(latents).stats["usage"].item()
    for _ in range(10):
        quantizer.after_step(quantizer(torch.randn(300, 4)))
    assert quantizer(latents).stats["usage"].item() > max(0.6, before)


def test_micro_batches_equal_one_batch() -> None:
    whole, parts = CVQ(4, 8), CVQ(4, 8)
    parts.load_state_dict(whole.state_dict())
    latents = torch.randn(40, 4)
    whole.after_step(whole(latents))
    parts.after_step(parts(latents[:25]), parts(latents[25:], torch.ones(15, dtype=torch.bool)))
    torch.testing.assert_close(parts.codebook, whole.codebook)
    torch.testing.assert_close(parts.usage, whole.usage)


@pytest.mark.parametrize("anchor", ANCHORS)
def test_padding_is_never_an_anchor(anchor: Any) -> None:
    quantizer = CVQ(2, 6, anchor=anchor)
    latents = torch.cat([torch.ones(3, 2), torch.full((200, 2), -7.0)])
    if anchor == "random":
        latents = torch.cat([torch.ones(9, 2), latents])  # enough valid ones to fill the pool
    mask = (latents > 0).all(dim=1)
    quantizer.after_step(quantizer(latents, mask))
    assert quantizer.codebook.detach().min() > -0.2


def test_pool_keeps_rows_that_are_not_refilled() -> None:
    quantizer = CVQ(2, 10, anchor="random")
    before = quantizer.pool.clone()
    quantizer.after_step(quantizer(torch.full((4, 2), 5.0)))
    fresh = (quantizer.pool == 5.0).all(dim=1)
    assert int(fresh.sum()) == 4
    assert torch.equal(quantizer.pool[~fresh], before[~fresh])


def test_first_batch_option_moves_codes_only_once() -> None:
    quantizer = CVQ(4, 8, first_batch=True)
    start = quantizer.codebook.detach().clone()
    quantizer.after_step(quantizer(torch.randn(50, 4)))
    first = quantizer.codebook.detach().clone()
    quantizer.after_step(quantizer(torch.randn(50, 4)))
    assert not torch.equal(first, start)
    assert torch.equal(quantizer.codebook.detach(), first)


def test_moved_codes_stay_in_ball() -> None:
    quantizer = CVQ(4, 16, init="unit-sphere", ball=Ball(alpha=0.0), arc=Arc())
    for _ in range(10):
        quantizer.after_step(quantizer(9 * torch.randn(20, 4)))
        norms = quantizer.codebook.detach().norm(dim=1)
        assert norms.max() <= 1 + 1e-6
    assert (norms > 1 - 1e-6).any()


def test_moved_codebook_stays_trainable_leaf() -> None:
    quantizer = CVQ(4, 8)
    out = quantizer(torch.randn(30, 4))
    quantizer.after_step(out)
    assert quantizer.codebook.is_leaf
    assert quantizer.codebook.requires_grad


def test_contrastive_term_moves_only_codes_and_only_in_training() -> None:
    quantizer = CVQ(4, 8, contrastive=Contrastive(weight=0.5))
    latents = torch.randn(40, 4, requires_grad=True)
    term = quantizer(latents).losses["contrastive"]
    codes, z = torch.autograd.grad(term, (quantizer.codebook, latents), allow_unused=True)
    assert codes.norm() > 1e-5
    assert z is None
    assert "contrastive" not in quantizer.eval()(latents).losses


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_contrastive_term_uses_weight_temperature_and_metric(metric: Metric) -> None:
    quantizer, latents = (
        CVQ(4, 8, metric=metric, contrastive=Contrastive(weight=0.5, temperature=0.3)),
        torch.randn(40, 4),
    )
    expected = 0.5 * contrastive_loss(latents, quantizer.codebook, metric, 0.3)
    torch.testing.assert_close(quantizer(latents).losses["contrastive"], expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"anchor": "nearest"}, "anchor: expected one of closest, random, probrandom"),
        ({"decay": 1.0}, "expected 0 <= decay < 1, got 1.0"),
        ({"contrastive": {"temperature": 0.0}}, "contrastive: the temperature must be positive"),
    ],
)
def test_wrong_options_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArcvqError, match=message):
        CVQ(4, 8, **options)
