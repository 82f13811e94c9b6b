"""SimVQ: a frozen basis behind one linear layer, through which tokens are decoded, too."""

from typing import Any

import pytest
import torch

from arcvq import VQ, Arc, ArcvqError, Ball
from arcvq.functional import arc_loss
from arcvq.quantizers import SimVQ


def trained(quantizer: SimVQ, steps: int = 5) -> SimVQ:
    optimizer = torch.optim.Adam(quantizer.parameters(), lr=0.1)
    for _ in range(steps):
        out = quantizer(3 * torch.randn(60, 4))
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()
        quantizer.after_step(out)
    return quantizer


def test_only_projection_learns_and_basis_keeps_every_bit() -> None:
    quantizer = SimVQ(4, 16)
    assert {name for name, _ in quantizer.named_parameters()} == {"projection.weight", "projection.bias"}
    basis = quantizer.basis.clone()
    trained(quantizer)
    assert torch.equal(quantizer.basis, basis)


def test_one_token_moves_every_code() -> None:
    quantizer = SimVQ(4, 16)
    before = quantizer.codebook.detach().clone()
    optimizer = torch.optim.SGD(quantizer.parameters(), lr=0.5)
    quantizer(torch.randn(1, 4)).loss.backward()
    optimizer.step()
    assert ((quantizer.codebook.detach() - before).norm(dim=1) > 0).all()


def test_identity_projection_equals_vq_with_basis_as_codes() -> None:
    quantizer, plain = SimVQ(4, 16), VQ(4, 16)
    with torch.no_grad():
        quantizer.projection.weight.copy_(torch.eye(4))
        quantizer.projection.bias.zero_()
        plain.codebook.copy_(quantizer.basis)
    latents = torch.randn(50, 4)
    ours, theirs = quantizer(latents), plain(latents)
    assert torch.equal(ours.tokens, theirs.tokens)
    assert torch.equal(ours.quantized, theirs.quantized)
    assert torch.equal(ours.loss, theirs.loss)


def test_tokens_decode_through_projection() -> None:
    quantizer = trained(SimVQ(4, 16))
    out = quantizer(torch.randn(30, 4))
    assert torch.equal(quantizer.decode(out.tokens), out.quantized)
    expected = quantizer.projection(quantizer.basis)[out.tokens]
    torch.testing.assert_close(out.quantized, expected, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(out.quantized, quantizer.basis[out.tokens])


def test_initial_basis_rows_have_norm_about_one() -> None:
    assert SimVQ(64, 512).basis.std().item() == pytest.approx(1 / 8, rel=0.02)


def test_ball_and_arc_act_on_the_projected_codes() -> None:
    quantizer = SimVQ(4, 16, metric="cosine", ball=Ball(alpha=0.01), arc=Arc())
    basis = quantizer.basis.clone()
    shrunk = 0
    optimizer = torch.optim.SGD(quantizer.parameters(), lr=3.0)
    for step in range(1, 11):
        out = quantizer(5 * torch.randn(60, 4))
        assert "arc" in out.losses
        assert not out.losses["arc"].requires_grad  # the latents need none here, and the codes get none (Eq. 12)
        optimizer.zero_grad()
        quantizer(5 * torch.randn(60, 4)).loss.backward()
        optimizer.step()
        moved = quantizer.codebook.detach().clone()
        quantizer.after_step(out)
        bounded, radius = quantizer.codebook.detach(), quantizer.samp.radius(torch.tensor(step))
        assert bounded.norm(dim=1).max() <= radius * (1 + 1e-6)
        inside = moved.norm(dim=1) < radius * (1 - 1e-6)
        assert torch.equal(bounded[inside], moved[inside])
        torch.testing.assert_close(torch.cosine_similarity(bounded, moved), torch.ones(16), rtol=0, atol=1e-5)
        shrunk += int((~inside).sum())
    assert shrunk > 0
    assert torch.equal(quantizer.basis, basis)


def test_arc_loss_uses_projected_codes() -> None:
    quantizer, latents = trained(SimVQ(4, 16, metric="cosine", arc=Arc())), torch.randn(60, 4)
    weight = quantizer.samp.weight(quantizer.step)
    settings = {"scale": 10.0, "margin": 0.1, "top_k": 3}
    loss = quantizer(latents).losses["arc"]
    torch.testing.assert_close(loss, weight * arc_loss(latents, quantizer.codebook.detach(), **settings))
    assert (loss - weight * arc_loss(latents, quantizer.basis, **settings)).abs() > 1e-2


@pytest.mark.parametrize("options", [{"init": "kmeans"}, {"restart": {"decay": 0.9}}])
def test_options_that_move_single_codes_raise(options: dict[str, Any]) -> None:
    with pytest.raises(ArcvqError, match="one layer moves all codes together"):
        SimVQ(4, 8, **options)
    with pytest.raises(ArcvqError, match="one layer moves all codes together"):
        SimVQ(4, 8).kmeans_init_(torch.randn(20, 4))
