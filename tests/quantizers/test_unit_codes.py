"""Unit codes for the decoder, as in ViT-VQGAN: only directions count."""

from typing import Any

import pytest
import torch
from torch import Tensor

from arcvq import VQ, ArcvqError
from arcvq.functional import unit
from arcvq.quantizers import CVQ, EMAVQ, Quantizer, SimVQ

UNIT: dict[str, Any] = {"metric": "cosine", "init": "normal", "loss_space": "unit", "output": "unit"}
each_class = pytest.mark.parametrize("cls", [VQ, CVQ, EMAVQ, SimVQ])


@each_class
@pytest.mark.parametrize("options", [{}, {"heads": 2}, {"estimator": "rotation"}], ids=["plain", "heads", "rotation"])
def test_decoder_gets_codes_of_norm_one(cls: type[Quantizer], options: dict[str, Any]) -> None:
    quantizer = cls(8, 16, **UNIT, **options)
    out = quantizer(torch.randn(50, 8))
    rows = out.quantized.reshape(-1, quantizer.code_dim)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(len(rows)), rtol=3e-7, atol=0)
    assert torch.equal(quantizer.decode(out.tokens), out.quantized)
    assert (quantizer.codebook.norm(dim=1) - 1).abs().max() > 0.1


@each_class
def test_scaled_latents_give_same_tokens_codes_and_losses(cls: type[Quantizer]) -> None:
    quantizer = cls(8, 16, **UNIT)
    latents = torch.randn(50, 8)
    ours, theirs = quantizer(latents), quantizer(latents * torch.rand(50, 1).add(0.1).mul(20))
    assert torch.equal(ours.tokens, theirs.tokens)
    assert torch.equal(ours.quantized, theirs.quantized)
    torch.testing.assert_close(ours.loss, theirs.loss)


def test_scaled_codes_give_same_tokens_codes_and_losses() -> None:
    quantizer, latents = VQ(8, 16, **UNIT), torch.randn(50, 8)
    ours = quantizer(latents)
    with torch.no_grad():
        quantizer.codebook.mul_(torch.rand(16, 1).add(0.1).mul(20))
    theirs = quantizer(latents)
    assert torch.equal(ours.tokens, theirs.tokens)
    torch.testing.assert_close(ours.quantized, theirs.quantized)
    torch.testing.assert_close(ours.loss, theirs.loss)


def test_losses_are_between_unit_vectors() -> None:
    quantizer, latents = VQ(8, 16, **UNIT), torch.randn(50, 8)
    out = quantizer(latents)
    error = (unit(latents) - unit(quantizer.codebook.detach())[out.tokens]).square().mean()
    torch.testing.assert_close(out.losses["codebook"].detach(), error)
    torch.testing.assert_close(out.losses["commitment"].detach(), 0.25 * error)


def test_decoder_gradient_reaches_raw_latents_unchanged() -> None:
    quantizer = VQ(8, 16, **UNIT)
    latents = (5 * torch.randn(50, 8)).requires_grad_()
    gradient: Tensor = torch.randn(50, 8)
    quantizer(latents).quantized.backward(gradient)
    assert torch.equal(latents.grad, gradient)
    assert quantizer.codebook.grad is None


def test_unit_output_with_selection_by_distance_raises() -> None:
    with pytest.raises(ArcvqError, match="say metric cosine"):
        VQ(8, 16, output="unit")
