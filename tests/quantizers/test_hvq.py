"""HVQ: relaxed draws in training, one code in evaluation, revival of unused codes."""

import math
from typing import Any

import pytest
import torch

from arcvq import ArcvqError
from arcvq.functional import gumbel
from arcvq.quantizers import HVQ, Revival


def test_defaults_are_the_authors() -> None:
    config = HVQ(4, 8).config
    assert (config.kl_weight, config.commitment_weight) == (1e-3, 1e-3)
    assert (config.temperature, config.temperature_end, config.evaluation) == (0.667, 0.001, "argmax")
    assert config.revival == Revival(every=20, threshold=0.03, noise=0.01)


def test_losses_equal_float64_formulas() -> None:
    quantizer = HVQ(3, 5, kl_weight=0.7, commitment_weight=0.3).double()
    latents = torch.randn(20, 3, dtype=torch.float64)
    distances = torch.cdist(latents, quantizer.codebook.detach()).square()
    p = (-distances).softmax(dim=1)
    losses = quantizer(latents).losses
    kl = (p * (p.log() + math.log(5))).sum(dim=1).mean()
    torch.testing.assert_close(losses["kl"], 0.7 * kl)
    torch.testing.assert_close(losses["commitment"], 0.3 * (p * distances).sum(dim=1).mean())


def test_commitment_moves_latents_and_codes() -> None:
    quantizer, latents = HVQ(3, 5), torch.randn(20, 3, requires_grad=True)
    gradients = torch.autograd.grad(quantizer(latents).losses["commitment"], (quantizer.codebook, latents))
    assert all(gradient.abs().max() > 0 for gradient in gradients)


def test_temperature_falls_linearly_until_draws_are_codes() -> None:
    quantizer = HVQ(3, 5, total_steps=10)
    for step, expected in ((0, 0.667), (5, 0.334), (10, 0.001), (20, 0.001)):
        quantizer.step.fill_(step)
        out = quantizer(torch.randn(50, 3))
        assert out.stats["temperature"].item() == pytest.approx(expected, rel=1e-4)
    torch.testing.assert_close(out.quantized, quantizer.decode(out.tokens), rtol=1e-3, atol=1e-2)
    assert HVQ(3, 5)(torch.randn(4, 3)).stats["temperature"].item() == pytest.approx(0.667)


@pytest.mark.parametrize(("step", "temperature"), [(0, 2.0), (10, 0.05)], ids=["warm", "cold"])
def test_training_output_is_mixture_at_step_temperature(step: int, temperature: float) -> None:
    quantizer, latents = HVQ(3, 5, temperature=2.0, temperature_end=0.05, total_steps=10), torch.randn(50, 3)
    quantizer.step.fill_(step)
    torch.manual_seed(7)
    noise = gumbel(torch.empty(50, 5))
    scores = noise - (latents.unsqueeze(1) - quantizer.codebook).square().sum(dim=2)
    torch.manual_seed(7)
    out = quantizer(latents)
    assert torch.equal(out.tokens, scores.argmax(dim=1))
    torch.testing.assert_close(out.quantized, (scores / temperature).softmax(dim=1) @ quantizer.codebook)


def test_evaluation_option_selects_nearest_code_or_draw() -> None:
    codes, latents = torch.tensor([[0.0], [1.0]]), torch.full((4000, 1), 0.25)
    shares = {}
    for evaluation in ("argmax", "sample"):
        quantizer = HVQ(1, 2, evaluation=evaluation).eval()
        with torch.no_grad():
            quantizer.codebook.copy_(codes)
        out = quantizer(latents)
        assert torch.equal(out.quantized, quantizer.decode(out.tokens))
        shares[evaluation] = out.tokens.float().mean().item()
    assert shares["argmax"] == 0.0
    assert shares["sample"] == pytest.approx(1 / (1 + math.exp(0.5625 - 0.0625)), abs=0.03)


def set_usage_counts(quantizer: HVQ, taken: list[int]) -> torch.Tensor:
    with torch.no_grad():
        quantizer.usage_counts.copy_(torch.tensor(taken))
    return quantizer.codebook.detach().clone()


def output_without_tokens(quantizer: HVQ) -> Any:
    return quantizer(torch.zeros(1, quantizer.dim), torch.zeros(1, dtype=torch.bool))


def test_least_used_code_moves_to_most_used_when_due() -> None:
    quantizer = HVQ(3, 4, revival=Revival(every=2))
    before = set_usage_counts(quantizer, [100, 2, 1, 50])
    quantizer.after_step(output_without_tokens(quantizer))
    assert torch.equal(quantizer.codebook.detach(), before)
    assert quantizer.usage_counts.tolist() == [100, 2, 1, 50]
    quantizer.after_step(output_without_tokens(quantizer))
    moved = quantizer.codebook.detach()
    assert torch.equal(moved[[0, 1, 3]], before[[0, 1, 3]])  # one code per step, though code 1 is hardly used, too
    assert 0 < (moved[2] - before[0]).norm() < 0.1
    assert quantizer.usage_counts.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("revival", [Revival(every=1), Revival(every=1, noise=0.3)], ids=["default", "wide"])
def test_revived_code_is_normal_around_most_used_one(revival: Revival) -> None:
    quantizer = HVQ(10_000, 2, revival=revival)
    before = set_usage_counts(quantizer, [100, 0])
    quantizer.after_step(output_without_tokens(quantizer))
    away = (quantizer.codebook.detach()[1] - before[0]) / revival.noise
    assert away.mean().item() == pytest.approx(0.0, abs=0.05)
    assert away.std().item() == pytest.approx(1.0, rel=0.05)
    assert (away.abs() < 1).float().mean().item() == pytest.approx(math.erf(math.sqrt(0.5)), abs=0.03)


def test_code_with_enough_tokens_stays() -> None:
    quantizer = HVQ(3, 4, revival=Revival(every=1))
    before = set_usage_counts(quantizer, [100, 20, 3, 50])
    quantizer.after_step(output_without_tokens(quantizer))
    assert torch.equal(quantizer.codebook.detach(), before)


def test_no_code_moves_without_revival() -> None:
    quantizer = HVQ(3, 4, revival=None)
    before = quantizer.codebook.detach().clone()
    for _ in range(25):
        quantizer.after_step(quantizer(torch.randn(9, 3)))
    assert torch.equal(quantizer.codebook.detach(), before)


def test_wrong_options_raise() -> None:
    with pytest.raises(ArcvqError, match="unknown option 'arc'"):
        HVQ(3, 4, arc={})
    with pytest.raises(ArcvqError, match="temperatures must be positive"):
        HVQ(3, 4, temperature=0.0)
    with pytest.raises(ArcvqError, match="revival: expected every >= 1"):
        Revival(every=0)
