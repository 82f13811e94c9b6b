"""EMAVQ: codes are running means over whole steps, without a gradient."""

from typing import Any

import pytest
import torch

from arcvq import VQ, Arc, ArcvqError, Ball
from arcvq.functional import smoothed_counts
from arcvq.quantizers import EMAVQ, Restart


def test_codebook_is_no_parameter_and_only_loss_is_commitment() -> None:
    quantizer = EMAVQ(4, 8)
    assert list(quantizer.parameters()) == []
    assert set(quantizer.state_dict()) == {"step", "codebook", "counts", "sums"}
    latents = torch.randn(30, 4, requires_grad=True)
    out = quantizer(latents)
    assert set(out.losses) == {"commitment"}
    torch.manual_seed(0)
    plain = VQ(4, 8)
    with torch.no_grad():
        plain.codebook.copy_(quantizer.codebook)
    torch.testing.assert_close(out.losses["commitment"], plain(latents).losses["commitment"])


def test_used_codes_become_running_means_and_others_stay() -> None:
    quantizer = EMAVQ(3, 16, init="normal", decay=0.9, epsilon=1e-3)
    before = quantizer.codebook.clone()
    latents = torch.randn(12, 3)
    out = quantizer(latents)
    quantizer.after_step(out)
    taken = torch.bincount(out.tokens, minlength=16)
    counts = 0.9 + 0.1 * taken
    sums = 0.9 * before + 0.1 * torch.zeros(16, 3).index_add(0, out.tokens, latents)
    torch.testing.assert_close(quantizer.counts, counts)  # the running count itself is not smoothed
    torch.testing.assert_close(quantizer.sums, sums)
    expected = sums / smoothed_counts(counts, 1e-3).unsqueeze(1)
    torch.testing.assert_close(quantizer.codebook[taken > 0], expected[taken > 0])
    assert (taken == 0).any()
    assert torch.equal(quantizer.codebook[taken == 0], before[taken == 0])


def test_unused_code_never_moves() -> None:
    quantizer = EMAVQ(2, 3, decay=0.5)
    with torch.no_grad():
        quantizer.codebook.copy_(torch.tensor([[0.0, 0.0], [1.0, 0.0], [900.0, 900.0]]))
        quantizer.sums.copy_(quantizer.codebook)
    for _ in range(60):  # long enough for its count to fade below epsilon
        quantizer.after_step(quantizer(torch.tensor([[0.0, 0.1], [1.0, 0.1]])))
    assert quantizer.codebook[2].tolist() == [900.0, 900.0]
    assert quantizer.counts[2] < 1e-9
    torch.testing.assert_close(quantizer.codebook[:2], torch.tensor([[0.0, 0.1], [1.0, 0.1]]), rtol=1e-4, atol=1e-4)


def test_micro_batches_equal_one_batch_without_padding() -> None:
    whole, parts = EMAVQ(4, 8, init="normal"), EMAVQ(4, 8)
    parts.load_state_dict(whole.state_dict())
    latents, mask = torch.randn(40, 4), torch.rand(40) > 0.3
    whole.after_step(whole(latents[mask]))
    parts.after_step(parts(latents[:25], mask[:25]), parts(latents[25:], mask[25:]))
    torch.testing.assert_close(parts.codebook, whole.codebook)
    torch.testing.assert_close(parts.counts, whole.counts)


def test_code_with_zero_init_count_becomes_mean_of_first_tokens() -> None:
    quantizer = EMAVQ(4, 2, init_count=0.0, epsilon=0.0)
    latents = torch.randn(20, 4)
    out = quantizer(latents)
    quantizer.after_step(out)
    for code in out.tokens.unique():
        torch.testing.assert_close(quantizer.codebook[code], latents[out.tokens == code].mean(dim=0))


def test_ball_bounds_codes_and_scales_sums() -> None:
    quantizer = EMAVQ(4, 16, metric="cosine", init="unit-sphere", ball=Ball(alpha=0.01), arc=Arc(), epsilon=0.0)
    for step in range(1, 11):
        quantizer.after_step(quantizer(5 * torch.randn(200, 4)))
        assert quantizer.codebook.norm(dim=1).max() <= quantizer.samp.radius(torch.tensor(step)) * (1 + 1e-6)
        means = quantizer.sums / quantizer.counts.unsqueeze(1)
        torch.testing.assert_close(means, quantizer.codebook, rtol=1e-4, atol=1e-5)


def test_restarted_code_counts_as_one_token() -> None:
    quantizer = EMAVQ(2, 4, restart=Restart(decay=0.0, threshold=0.5))
    with torch.no_grad():
        quantizer.codebook.copy_(torch.tensor([[0.0, 0.0], [50.0, 0.0], [60.0, 0.0], [70.0, 0.0]]))
    latents = torch.randn(30, 2)
    quantizer.after_step(quantizer(latents))
    assert quantizer.counts[1:].tolist() == [1.0, 1.0, 1.0]
    assert torch.equal(quantizer.sums[1:], quantizer.codebook[1:])
    assert all((row == latents).all(dim=1).any() for row in quantizer.codebook[1:])


def test_kmeans_init_sets_running_sums() -> None:
    quantizer = EMAVQ(4, 8, init="kmeans", init_count=2.0)
    quantizer.kmeans_init_(torch.randn(50, 4))
    assert torch.equal(quantizer.sums, 2 * quantizer.codebook)
    assert quantizer.counts.tolist() == [2.0] * 8


def test_attaching_to_encoder_optimizer_updates_codes() -> None:
    encoder, quantizer = torch.nn.Linear(4, 4), EMAVQ(4, 8)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    quantizer.attach(optimizer)
    before = quantizer.codebook.clone()
    out = quantizer(encoder(torch.randn(20, 4)))
    (out.loss + out.quantized.sum()).backward()
    optimizer.step()
    assert quantizer.step.item() == 1
    assert not torch.equal(quantizer.codebook, before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"codebook_weight": 1.0}, "codes that are running means have no codebook term"),
        ({"legacy": True}, "codes that are running means have no codebook term"),
        ({"arc": Arc(stop_gradient=False)}, "arc.stop_gradient must stay true"),
        ({"decay": 1.0}, "expected 0 <= decay < 1"),
        ({"epsilon": -1.0}, "epsilon >= 0"),
    ],
)
def test_wrong_options_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArcvqError, match=message):
        EMAVQ(4, 8, **options)


def test_vqgan_settings_converge_to_cluster_means_and_conserve_counts() -> None:
    """Decay .99, epsilon 1e-5, counts from 1, Euclidean, the commitment term alone with weight 1: VQGAN-EMA."""
    quantizer = EMAVQ(2, 8, init="normal", commitment_weight=1.0)
    config = quantizer.config
    assert (config.decay, config.epsilon, config.init_count, config.metric) == (0.99, 1e-5, 1.0, "euclidean")
    latents = torch.randn(80, 2)
    out = quantizer(latents)
    torch.testing.assert_close(out.loss, (latents - quantizer.codebook[out.tokens]).square().mean())
    for _ in range(2000):
        quantizer.update([out.update_inputs])  # fixed assignments
    used = out.tokens.unique()
    means = torch.stack([latents[out.tokens == code].mean(dim=0) for code in used])
    torch.testing.assert_close(quantizer.codebook[used], means, rtol=1e-3, atol=1e-3)
    assert quantizer.counts.sum().item() == pytest.approx(80, rel=1e-3)
