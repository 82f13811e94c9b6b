"""forward changes nothing; after_step keeps codes in the ball."""

import copy
from typing import Any

import pytest
import torch
from every_quantizer import KINDS, build

from arcvq import VQ, ArcVQ, Ball, Quantizer
from arcvq.quantizers import Arc, Entropy, Restart

EVERYTHING: dict[str, Any] = {
    "arc": Arc(schedule="adaptive"),
    "entropy": Entropy(),
    "restart": Restart(),
    "code_dim": 3,
    "heads": 2,
}


def state_bytes(quantizer: Quantizer) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in quantizer.state_dict().items()}


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("options", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_forward_and_backward_change_no_parameter_and_no_buffer(options: dict[str, Any], training: bool) -> None:
    quantizer = ArcVQ(4, 8, **options).train(training)
    before, random = state_bytes(quantizer), torch.get_rng_state()
    out = quantizer(torch.randn(2, 4, 5, 5, requires_grad=True))
    drawn = torch.get_rng_state()
    (out.loss + out.quantized.sum()).backward()
    quantizer.decode(out.tokens)
    assert state_bytes(quantizer) == before
    torch.set_rng_state(random)
    torch.randn(2, 4, 5, 5)
    assert torch.equal(torch.get_rng_state(), drawn), "forward drew random numbers"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "samp" in kind])
def test_codes_stay_in_ball_for_every_samp_quantizer(kind: str) -> None:
    quantizer = build(kind, 4, 16)
    optimizer = torch.optim.SGD([*quantizer.parameters(), torch.nn.Parameter(torch.zeros(1))], lr=20.0)
    on_the_sphere = 0
    for step in range(1, 11):
        out = quantizer(5 * torch.randn(64, 4))
        optimizer.zero_grad()
        if out.loss.requires_grad:
            out.loss.backward()
        optimizer.step()
        quantizer.after_step(out)
        radius = quantizer.samp.radius(torch.tensor(step)).item()
        norms = quantizer.codebook.detach().double().norm(dim=1)
        assert norms.max() <= radius * (1 + 1e-6)
        on_the_sphere += int((norms > radius * (1 - 1e-6)).sum())
    assert on_the_sphere > 10


def test_same_latents_give_same_output() -> None:
    quantizer, latents = ArcVQ(4, 8, **EVERYTHING), torch.randn(2, 4, 5, 5)
    first, second = quantizer(latents), quantizer(latents)
    assert torch.equal(first.tokens, second.tokens)
    assert torch.equal(first.loss, second.loss)


def test_update_inputs_hold_no_graph() -> None:
    record = ArcVQ(4, 8)(torch.randn(6, 4, requires_grad=True)).update_inputs
    assert not record.latents.requires_grad
    assert not record.tokens.requires_grad


def test_codes_lie_in_growing_ball_after_each_step() -> None:
    quantizer = ArcVQ(4, 16, ball=Ball(alpha=0.01))
    optimizer = torch.optim.SGD(quantizer.parameters(), lr=20.0)
    clipped = 0
    for step in range(1, 30):
        out = quantizer(5 * torch.randn(64, 4))
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()
        moved = quantizer.codebook.detach().clone()
        quantizer.after_step(out)
        assert quantizer.step.item() == step
        radius = torch.exp(torch.tensor(0.01, dtype=torch.float64) * step)
        norms = moved.double().norm(dim=1)
        assert quantizer.codebook.detach().double().norm(dim=1).max() <= radius * (1 + 1e-6)
        inside = norms <= radius * (1 - 1e-6)
        assert torch.equal(quantizer.codebook.detach()[inside], moved[inside])
        cosines = torch.nn.functional.cosine_similarity(quantizer.codebook.detach(), moved)
        torch.testing.assert_close(cosines, torch.ones(16), rtol=0, atol=1e-6)
        clipped += int((~inside).sum())
    assert clipped > 0


def test_constant_ball_keeps_norms_at_most_one() -> None:
    quantizer = ArcVQ(4, 16, ball=Ball(alpha=0.0))
    optimizer = torch.optim.SGD(quantizer.parameters(), lr=20.0)
    for _ in range(20):
        out = quantizer(5 * torch.randn(64, 4))
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()
        quantizer.after_step(out)
    assert quantizer.codebook.detach().double().norm(dim=1).max() <= 1 + 1e-6


def test_evaluation_does_not_bound_codes() -> None:
    quantizer = ArcVQ(4, 8).eval()
    with torch.no_grad():
        quantizer.codebook.mul_(100)
    before = state_bytes(quantizer)
    quantizer(torch.randn(2, 4, 3, 3))
    assert state_bytes(quantizer) == before


def test_radius_and_weight_at_step_zero() -> None:
    out = ArcVQ(4, 8, arc=Arc(weight=0.7))(torch.randn(2, 4, 3, 3))
    assert out.stats["ball_radius"].item() == 1.0
    assert out.stats["arc_weight"].item() == pytest.approx(0.7, abs=1e-7)
    torch.testing.assert_close(out.losses["arc"], 0.7 * out.stats["arc_loss"])


def test_zero_code_and_zero_latent_give_no_nan() -> None:
    quantizer = ArcVQ(4, 8, entropy=Entropy(), restart=Restart())
    with torch.no_grad():
        quantizer.codebook[3] = 0
    latents = torch.randn(10, 4)
    latents[2] = 0
    latents.requires_grad_()
    out = quantizer(latents)
    out.loss.backward()
    quantizer.after_step(out)
    assert torch.isfinite(out.loss)
    assert torch.isfinite(latents.grad).all()
    assert torch.isfinite(quantizer.codebook).all()
    assert torch.isfinite(quantizer.codebook.grad).all()


def test_tokens_do_not_depend_on_norms() -> None:
    quantizer, latents = ArcVQ(4, 32).eval(), torch.randn(200, 4)
    tokens = quantizer(latents).tokens
    with torch.no_grad():
        quantizer.codebook.mul_(torch.rand(32, 1) * 100 + 0.01)
    assert torch.equal(quantizer(latents * (torch.rand(200, 1) * 100 + 0.01)).tokens, tokens)


def test_arc_loss_gradient_is_orthogonal_and_only_for_latents() -> None:
    quantizer, latents = ArcVQ(4, 8), torch.randn(40, 4, requires_grad=True)
    arc = quantizer(latents).losses["arc"]
    codebook, gradient = torch.autograd.grad(arc, (quantizer.codebook, latents), allow_unused=True)
    assert codebook is None
    assert gradient.norm() > 1e-3
    assert (gradient * latents).sum(dim=1).abs().max() < 1e-6


def test_gradient_of_quantized_reaches_only_latents_unchanged() -> None:
    quantizer, latents = VQ(4, 8), torch.randn(3, 4, 2, 2, requires_grad=True)
    upstream = torch.randn(3, 4, 2, 2)
    quantizer(latents).quantized.backward(upstream)
    assert torch.equal(latents.grad, upstream)
    assert quantizer.codebook.grad is None


def test_one_dimension_equals_hand_computed_values() -> None:
    quantizer = VQ(1, 2).double()
    with torch.no_grad():
        quantizer.codebook.copy_(torch.tensor([[-1.0], [1.0]]))
    out = quantizer(torch.tensor([[0.2]], dtype=torch.float64))
    assert out.tokens.tolist() == [1]
    assert out.losses["codebook"].item() == pytest.approx(0.64, abs=1e-12)
    assert out.loss.item() == pytest.approx(1.25 * 0.64, abs=1e-6)


def test_latents_equal_to_codes_give_zero_loss() -> None:
    quantizer = VQ(4, 8, init="normal")
    out = quantizer(quantizer.codebook.detach().clone())
    assert out.tokens.tolist() == list(range(8))
    assert out.loss.item() == 0.0


def test_loaded_quantizer_gives_same_tokens_and_step(tmp_path: Any) -> None:
    quantizer = ArcVQ(4, 8, **EVERYTHING)
    for _ in range(3):
        quantizer.after_step(quantizer(torch.randn(2, 4, 3, 3)))
    torch.save(quantizer.state_dict(), tmp_path / "state.pt")
    torch.manual_seed(99)
    loaded = ArcVQ(4, 8, **EVERYTHING)
    loaded.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert state_bytes(loaded) == state_bytes(quantizer)
    latents = torch.randn(2, 4, 3, 3)
    ours, theirs = quantizer.eval()(latents), loaded.eval()(latents)
    assert torch.equal(ours.tokens, theirs.tokens)
    assert torch.equal(ours.quantized, theirs.quantized)
    assert loaded.step.item() == 3


def test_deep_copy_is_independent() -> None:
    quantizer = ArcVQ(4, 8)
    twin = copy.deepcopy(quantizer)
    twin.after_step(twin(torch.randn(6, 4)))
    assert (quantizer.step.item(), twin.step.item()) == (0, 1)
    assert twin.codebook.data_ptr() != quantizer.codebook.data_ptr()
    assert twin.codebook.requires_grad
