"""Residual quantization: codes are added up, each chosen for what the codes before it leave over."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from arcvq import Arc, ArcvqError, Ball
from arcvq.functional import arc_loss, assign
from arcvq.quantizers import EMAVQ, ResidualVQ, UpdateInputs

SHARED = [True, False]
shared_or_not = pytest.mark.parametrize("shared", SHARED, ids=["shared", "one per depth"])


def residuals(quantizer: ResidualVQ, latents: Tensor, tokens: Tensor) -> list[Tensor]:
    """What is left of rows (N, D) before each depth and after the last: z, z − e_1, z − e_1 − e_2, …"""
    left = [latents]
    for depth in range(quantizer.depth):
        left.append(left[-1] - quantizer.layer(depth).codebook.detach()[tokens[:, depth]])
    return left


@shared_or_not
def test_each_token_is_nearest_code_of_residual(shared: bool) -> None:
    quantizer = ResidualVQ(4, 16, depth=3, shared=shared, codebook={"kind": "vq", "init": "normal"})
    latents = torch.randn(50, 4)
    out = quantizer(latents)
    left = residuals(quantizer, latents, out.tokens)
    for depth in range(3):
        codes = quantizer.layer(depth).codebook
        assert torch.equal(out.tokens[:, depth], assign(left[depth], codes, "euclidean"))
    assert len({id(quantizer.layer(depth)) for depth in range(3)}) == (1 if shared else 3)
    assert quantizer.codebook.shape == ((16 if shared else 48), 4)


@shared_or_not
def test_codes_and_last_residual_add_up_to_latents(shared: bool) -> None:
    quantizer = ResidualVQ(4, 16, depth=5, shared=shared, codebook={"init": "normal"})
    latents = torch.randn(50, 4)
    out = quantizer(latents)
    torch.testing.assert_close(out.quantized + residuals(quantizer, latents, out.tokens)[-1], latents)
    assert torch.equal(quantizer.decode(out.tokens), out.quantized)


def test_residual_never_grows_if_zero_is_a_code() -> None:
    quantizer = ResidualVQ(4, 8, depth=6, codebook={"init": "normal"})
    quantizer.codebook[3] = 0
    latents = torch.randn(200, 4)
    norms = [left.norm(dim=1) for left in residuals(quantizer, latents, quantizer(latents).tokens)]
    for before, after in pairwise(norms):
        assert (after <= before + 1e-6).all()
    assert norms[-1].mean() < 0.8 * norms[0].mean()


def test_depth_of_one_equals_emavq() -> None:
    torch.manual_seed(1)
    quantizer = ResidualVQ(4, 16, depth=1)
    torch.manual_seed(1)
    plain = EMAVQ(4, 16)
    for _ in range(3):
        latents = torch.randn(5, 4, 3)
        ours, theirs = quantizer(latents), plain(latents)
        assert torch.equal(ours.tokens, theirs.tokens)
        assert torch.equal(ours.quantized, theirs.quantized)
        assert torch.equal(ours.loss, theirs.loss)
        quantizer.after_step(ours)
        plain.after_step(theirs)
        assert torch.equal(quantizer.codebook, plain.codebook)
        assert quantizer.step == plain.step == quantizer.layer(0).step


def test_commitment_is_mean_over_depths_of_distances_to_partial_sums() -> None:
    quantizer = ResidualVQ(4, 16, depth=3, codebook={"init": "normal"})
    latents = torch.randn(50, 4, requires_grad=True)
    out = quantizer(latents)
    sums = [quantizer.decode_depths(out.tokens[:, : depth + 1]) for depth in range(3)]
    expected = 0.25 * torch.stack([(latents - each).square().mean() for each in sums]).mean()
    assert out.losses.keys() == {"commitment"}
    torch.testing.assert_close(out.loss, expected)
    ours, theirs = (torch.autograd.grad(each, latents)[0] for each in (out.loss, expected))
    torch.testing.assert_close(ours, theirs)


def test_decoder_gradient_reaches_latents_unchanged() -> None:
    quantizer = ResidualVQ(4, 16, depth=3)
    latents = torch.randn(50, 4, requires_grad=True)
    gradient = torch.randn(50, 4)
    quantizer(latents).quantized.backward(gradient)
    assert torch.equal(latents.grad, gradient)


def test_shared_codebook_is_updated_once_with_residuals_of_all_depths() -> None:
    quantizer, plain = ResidualVQ(4, 16, depth=3, codebook={"init": "normal"}), EMAVQ(4, 16)
    plain.load_state_dict(quantizer.layer(0).state_dict())
    latents = torch.randn(2, 50, 4)
    outputs = [quantizer(part) for part in latents]
    rows = [torch.cat(residuals(quantizer, part, out.tokens)[:3]) for part, out in zip(latents, outputs)]
    tokens = torch.cat([out.tokens.t().reshape(-1) for out in outputs])
    quantizer.after_step(*outputs)
    plain.update([UpdateInputs(torch.cat(rows), tokens, None)])
    torch.testing.assert_close(quantizer.codebook, plain.codebook)
    torch.testing.assert_close(quantizer.layer(0).counts, plain.counts)
    assert quantizer.layer(0).step == 1


def test_codebook_of_each_depth_is_updated_with_its_residuals() -> None:
    quantizer = ResidualVQ(4, 16, depth=3, shared=False, codebook={"init": "normal"})
    plain = [EMAVQ(4, 16) for _ in range(3)]
    for own, layer in zip(plain, quantizer.vqs()):
        own.load_state_dict(layer.state_dict())
    latents = torch.randn(50, 4)
    out = quantizer(latents)
    left = residuals(quantizer, latents, out.tokens)
    quantizer.after_step(out)
    for depth, (own, layer) in enumerate(zip(plain, quantizer.vqs())):
        own.update([UpdateInputs(left[depth], out.tokens[:, depth], None)])
        torch.testing.assert_close(layer.codebook, own.codebook)


@shared_or_not
def test_training_lowers_error_and_depth_lowers_it_further(shared: bool) -> None:
    quantizer = ResidualVQ(4, 16, depth=3, shared=shared, codebook={"init": "normal", "decay": 0.8})
    latents = torch.randn(500, 4)
    first = (quantizer(latents).quantized - latents).square().mean()
    for _ in range(30):
        quantizer.after_step(quantizer(latents))
    out = quantizer(latents)
    errors = [(quantizer.decode_depths(out.tokens[:, :d]) - latents).square().mean().item() for d in (1, 2, 3)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.7 * first
    assert torch.equal(quantizer.decode_depths(out.tokens), out.quantized)


@shared_or_not
def test_arc_loss_is_mean_over_depths_and_ball_bounds_codes(shared: bool) -> None:
    samp: dict[str, Any] = {"kind": "arcvq", "ball": Ball(schedule="constant", start=0.5), "arc": Arc(weight=0.7)}
    quantizer = ResidualVQ(4, 16, depth=3, shared=shared, codebook=samp)
    latents = torch.randn(60, 4)
    out = quantizer(latents)
    left = residuals(quantizer, latents, out.tokens)
    terms = [
        arc_loss(left[depth], quantizer.layer(depth).codebook.detach(), scale=10.0, margin=0.1, top_k=3)
        for depth in range(3)
    ]
    torch.testing.assert_close(out.losses["arc"], 0.7 * torch.stack(terms).mean())
    assert quantizer.codebook.norm(dim=1).max() > 0.9
    quantizer.after_step(out)
    torch.testing.assert_close(quantizer.codebook.norm(dim=1), torch.full((len(quantizer.codebook),), 0.5))


def test_usage_and_perplexity_are_over_all_codebooks() -> None:
    quantizer = ResidualVQ(2, 4, depth=2, shared=False, codebook={"kind": "vq"})
    with torch.no_grad():
        quantizer.layer(0).codebook.copy_(torch.tensor([[4.0, 0], [-4.0, 0], [90, 90], [90, 90]]))
        quantizer.layer(1).codebook.copy_(torch.tensor([[0, 1.0], [90, 90], [90, 90], [90, 90]]))
    out = quantizer(torch.tensor([[4.0, 1.0], [-4.0, 1.0]]))
    assert out.tokens.tolist() == [[0, 0], [1, 0]]
    assert quantizer.code_indices(out.tokens).tolist() == [[0, 4], [1, 4]]
    assert out.stats["usage"].item() == pytest.approx(3 / 8)
    assert out.stats["perplexity"].item() == pytest.approx(2**1.5)  # shares 1/4, 1/4 and 1/2


def test_kmeans_init_places_codes_of_each_depth_on_what_is_left() -> None:
    quantizer = ResidualVQ(2, 3, depth=2, shared=False, codebook={"kind": "vq", "init": "kmeans"})
    centres, offsets = 10 * torch.randn(3, 2), 0.1 * torch.randn(3, 2)
    offsets -= offsets.mean(dim=0)
    latents = (centres[:, None] + offsets).reshape(-1, 2)
    with pytest.raises(ArcvqError, match="not initialized"):
        quantizer(latents)
    assert quantizer.inits_from_latents
    quantizer.init_from_latents_(latents)
    torch.testing.assert_close(quantizer(latents).quantized, latents, rtol=1e-4, atol=1e-4)


def test_heads_and_depths_give_a_token_each() -> None:
    quantizer = ResidualVQ(8, 16, depth=3, heads=2)
    out = quantizer(torch.randn(5, 8, 6, 6))
    assert out.tokens.shape == (5, 6, 6, 6)
    assert quantizer.tokens_per_position == 6
    assert torch.equal(quantizer.decode(out.tokens), out.quantized)
    with pytest.raises(ArcvqError, match="several heads"):
        quantizer.decode_depths(out.tokens)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 0}, "depth must be from 1 to 1024, got 0"),
        ({"depth": 10**9}, "depth must be from 1 to 1024"),
        ({"codebook": {"kind": "fsq"}}, "unknown codebook 'fsq'"),
        ({"codebook": {"codebook_size": 64}}, "codebook.codebook_size is an option of the whole quantizer"),
        ({"codebook": {"heads": 2}}, "say heads outside codebook"),
        ({"codebook": {"kind": "vq", "metric": "cosine", "output": "unit"}}, "codebook.output must be raw"),
    ],
)
def test_wrong_options_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArcvqError, match=message):
        ResidualVQ(4, 16, **options)


@pytest.mark.parametrize("shape", [(5,), (5, 3, 4), (5, 3, 0)])
def test_wrong_number_of_depths_raises(shape: tuple[int, ...]) -> None:
    quantizer = ResidualVQ(4, 16, depth=3)
    with pytest.raises(ArcvqError, match="expected tokens"):
        quantizer.decode_depths(torch.zeros(shape, dtype=torch.int64))
    with pytest.raises(ArcvqError, match="expected tokens"):
        quantizer.decode(torch.zeros(shape, dtype=torch.int64))


@pytest.mark.parametrize("shared", [True, False])
def test_codes_are_drawn_with_the_probabilities_of_their_distances(shared: bool) -> None:
    torch.manual_seed(0)
    layer = ResidualVQ(dim=3, codebook_size=5, depth=2, shared=shared).eval()
    latents = torch.randn(1, 3, 1, 1).expand(20_000, 3, 1, 1)
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    tokens, probabilities = layer.draw(latents, 0.7)
    assert (tokens.shape, probabilities.shape) == ((20_000, 1, 1, 2), (20_000, 1, 1, 2, 5))
    residual = latents[:, :, 0, 0].double()
    for depth in range(2):
        codes = layer.layer(depth).codebook.detach().double()
        expected = (-(residual[:, None] - codes).square().sum(2) / 0.7).softmax(1)
        torch.testing.assert_close(probabilities[:, 0, 0, depth].double(), expected, atol=1e-5, rtol=1e-4)
        drawn = tokens[:, 0, 0, depth]
        shares = drawn.bincount(minlength=5) / 20_000
        torch.testing.assert_close(shares.double(), expected.mean(0), atol=0.015, rtol=0)
        residual = residual - codes[drawn]
    assert all(torch.equal(before[name], tensor) for name, tensor in layer.state_dict().items())


def test_codes_drawn_at_a_low_temperature_are_the_nearest_ones(as_if_captured: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    layer = ResidualVQ(dim=4, codebook_size=9, depth=3).eval()
    latents = torch.randn(2, 4, 3, 5)
    with as_if_captured():  # a CUDA graph can hold it
        drawn, _ = layer.draw(latents, 1e-9)
    assert torch.equal(drawn, layer.encode(latents))


@pytest.mark.parametrize("options", [{"codebook": {"kind": "emavq", "metric": "cosine"}}, {"heads": 2}])
def test_codes_are_drawn_by_distance_only(options: dict[str, Any]) -> None:
    with pytest.raises(ArcvqError, match="drawn by distance"):
        ResidualVQ(dim=4, codebook_size=9, depth=2, **options).draw(torch.randn(2, 4, 3, 5), 0.5)
