"""SQ-VAE's quantizer: the variance of each type, the limits of σ², the temperature."""

import math

import pytest
import torch
from torch import Tensor

from arcvq import ArcvqError
from arcvq.functional import arc_loss, gumbel
from arcvq.quantizers import SQ, Arc, Ball

TYPES = ("I", "II", "III", "IV")


def with_variance(value: float, **options: object) -> SQ:
    quantizer = SQ(4, 8, floor=0.0, init_variance=1.0, **options)
    with torch.no_grad():
        quantizer.log_variance.fill_(math.log(value))
    return quantizer


def test_initial_variance_is_floor_plus_init_variance() -> None:
    assert SQ(4, 8, init_variance=20.0)(torch.randn(9, 4)).stats["variance"].item() == pytest.approx(21.0)
    assert SQ(4, 8, init_variance=20.0, floor=0.0)(torch.randn(9, 4)).stats["variance"].item() == pytest.approx(20.0)


@pytest.mark.parametrize(("type", "shape"), [("I", (1, 1)), ("II", (12, 1)), ("III", (12, 1)), ("IV", (12, 4))])
def test_each_type_has_variance_of_its_shape(type: str, shape: tuple[int, int]) -> None:
    quantizer, latents = SQ(4, 8, type=type, positions=3), torch.randn(12, 4)
    variance = quantizer.variance(latents, None)
    assert variance.shape == shape
    assert (variance > 20).all()
    if type == "II":
        images = variance.reshape(4, 3)
        assert torch.equal(images, images[:, :1].expand(4, 3))
        assert images[:, 0].unique().numel() == 4


@pytest.mark.parametrize(
    ("type", "own"),
    [
        ("II", [[32], [32], [12], [12]]),
        ("III", [[8], [128], [4], [36]]),
        ("IV", [[8, 8], [128, 128], [2, 8], [6, 216]]),
    ],
)
def test_variance_is_exponential_of_mean_logarithm(type: str, own: list[list[float]]) -> None:
    quantizer = SQ(2, 8, type=type, positions=2, init_variance=20.0)
    with torch.no_grad():
        quantizer.variance_head.weight.copy_(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
        quantizer.variance_head.bias.copy_(torch.tensor([2.0, 8.0]).log())  # (a, b) → (2b, 8a), as logarithms
    latents = torch.tensor([[1.0, 4.0], [16.0, 64.0], [1.0, 1.0], [27.0, 3.0]]).log()
    torch.testing.assert_close(quantizer.variance(latents, None), torch.tensor(own) + 20.0)


def test_type_two_image_mean_excludes_padding() -> None:
    quantizer, latents = SQ(4, 8, type="II", positions=3), torch.randn(3, 4)
    valid = torch.tensor([True, False, True])
    kept = SQ(4, 8, type="II", positions=2)
    kept.load_state_dict(quantizer.state_dict())
    torch.testing.assert_close(quantizer.variance(latents, valid)[valid], kept.variance(latents[valid], None))


def test_large_variance_makes_codes_equally_likely() -> None:
    out = with_variance(1e9)(torch.randn(6, 4))
    assert out.losses["entropy"].item() == pytest.approx(-math.log(8), abs=1e-6)


def test_small_variance_selects_nearest_code() -> None:
    quantizer, latents = with_variance(1e-6), torch.randn(6, 4)
    out = quantizer(latents)
    assert out.losses["entropy"].item() == pytest.approx(0.0, abs=1e-5)
    assert torch.equal(out.tokens, torch.cdist(latents, quantizer.codebook.detach()).argmin(dim=1))
    torch.testing.assert_close(out.quantized, quantizer.codebook[out.tokens], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("type", TYPES)
def test_losses_are_token_means_divided_by_elements(type: str) -> None:
    torch.manual_seed(2)
    one, many = (SQ(4, 8, type=type, positions=3, elements=elements) for elements in (None, 48))
    many.load_state_dict(one.state_dict())
    latents = torch.randn(6, 4)
    variance = one.variance(latents, None)
    torch.manual_seed(5)
    out = one(latents)
    distance = ((latents - out.quantized).square() / (2 * variance)).sum(dim=1).mean()
    torch.testing.assert_close(out.losses["distance"], distance)
    torch.manual_seed(5)
    for name, term in many(latents).losses.items():
        torch.testing.assert_close(term, out.losses[name] / 48)


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("type", ["I", "II", "III"])
def test_losses_equal_elbo_per_element_for_any_heads(type: str, heads: int) -> None:
    """Written out: per image the sum over all its tokens, by its 4 positions of 12 elements each."""
    quantizer = SQ(8, 16, type=type, heads=heads, positions=4, elements=12, floor=0.0, init_variance=0.7)
    images = torch.randn(3, 8, 2, 2)
    out = quantizer(images)
    entropies, distances = [], []
    vectors, quantized = (x.detach().flatten(2).movedim(1, -1) for x in (images, out.quantized))  # (3, 4, 8)
    for image, made in zip(vectors, quantized):
        tokens, drawn = image.reshape(4 * heads, -1), made.reshape(4 * heads, -1)
        own = torch.zeros(1) if type == "I" else quantizer.variance_head(tokens).detach().mean(dim=1).exp()
        variance = 0.7 + (own.log().mean().exp() if type == "II" else own) if type != "I" else torch.tensor(0.7)
        variance = variance.expand(4 * heads)
        squares = torch.cdist(tokens, quantizer.codebook.detach()).square()
        p = torch.softmax(-squares / (2 * variance[:, None]), dim=1)
        entropies.append((p * p.log()).sum())
        distances.append(((tokens - drawn).square().sum(dim=1) / (2 * variance)).sum())
    for name, sums in (("entropy", entropies), ("distance", distances)):
        assert out.losses[name].item() == pytest.approx(torch.stack(sums).mean().item() / 48, rel=1e-4)


def test_init_option_places_codes_on_unit_sphere() -> None:
    torch.testing.assert_close(SQ(4, 8, init="unit-sphere").codebook.norm(dim=1), torch.ones(8))
    assert SQ(64, 8).codebook.norm(dim=1).min() > 4


@pytest.mark.parametrize("level", [-110.0, -60.0, 60.0, 110.0])
@pytest.mark.parametrize("type", TYPES)
def test_extreme_variance_gives_finite_gradients(type: str, level: float) -> None:
    quantizer, latents = SQ(4, 8, type=type, positions=3, floor=0.0), torch.randn(6, 4, requires_grad=True)
    with torch.no_grad():
        quantizer.log_variance.fill_(level)
        if quantizer.variance_head is not None:
            quantizer.variance_head.bias.fill_(level)
    out = quantizer(latents)
    (out.loss + out.quantized.sum()).backward()
    assert out.loss.isfinite()
    assert all(p.grad.isfinite().all() for p in (latents, *quantizer.parameters()))


def test_temperature_has_lower_bound() -> None:
    quantizer = SQ(4, 8, temperature={"decay": 1.0})
    quantizer.step.fill_(500)
    out = quantizer(torch.randn(6, 4))
    assert out.quantized.isfinite().all()
    assert out.stats["temperature"].item() == pytest.approx(1e-6)


@pytest.mark.parametrize("type", TYPES)
def test_gradient_of_quantized_reaches_latents_codes_and_variance(type: str) -> None:
    quantizer, latents = SQ(4, 8, type=type, positions=3), torch.randn(6, 4, requires_grad=True)
    quantizer(latents).quantized.sum().backward()  # through the draw alone
    for parameter in (latents, *quantizer.parameters()):
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0


def expected_mixture(quantizer: SQ, latents: Tensor, noise: Tensor, temperature: float) -> Tensor:
    variance = quantizer.variance(latents, None).unsqueeze(1)
    logits = -((latents.unsqueeze(1) - quantizer.codebook).square() / (2 * variance)).sum(dim=2)
    return ((logits + noise) / temperature).softmax(dim=1) @ quantizer.codebook


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize(("step", "temperature"), [(0, 2.0), (6, 2 * math.exp(-3))], ids=["warm", "cold"])
def test_training_output_is_mixture_at_step_temperature(type: str, step: int, temperature: float) -> None:
    options = {"init_variance": 0.5, "floor": 0.0, "temperature": {"start": 2.0, "decay": 0.5}}
    quantizer, latents = SQ(4, 8, type=type, positions=3, **options), torch.randn(6, 4)
    quantizer.step.fill_(step)
    torch.manual_seed(7)
    expected = expected_mixture(quantizer, latents, gumbel(torch.empty(6, 8)), temperature)
    torch.manual_seed(7)
    torch.testing.assert_close(quantizer(latents).quantized, expected)


@pytest.mark.parametrize("type", TYPES)
def test_distance_term_has_full_gradient(type: str) -> None:
    quantizer = SQ(4, 8, type=type, positions=3, init_variance=0.5, floor=0.0).double()
    latents = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(7)
    codes = expected_mixture(quantizer, latents, gumbel(torch.empty(6, 8, dtype=torch.float64)), 1.0)
    distance = ((latents - codes).square() / (2 * quantizer.variance(latents, None))).sum(dim=1).mean()
    torch.manual_seed(7)
    ours = quantizer(latents).losses["distance"]
    wanted = (latents, *quantizer.parameters())
    torch.testing.assert_close(torch.autograd.grad(ours, wanted), torch.autograd.grad(distance, wanted))


def test_temperature_falls_with_steps() -> None:
    quantizer, latents = SQ(4, 8, temperature={"decay": 0.5}), torch.randn(6, 4)
    for step in range(3):
        out = quantizer(latents)
        assert out.stats["temperature"].item() == pytest.approx(math.exp(-0.5 * step))
        quantizer.after_step(out)


def test_temperature_follows_fraction_of_total_steps() -> None:
    quantizer = SQ(4, 8, temperature={"decay": 1.25, "time": "fraction"}, total_steps=4)
    for _ in range(4):
        quantizer.after_step(quantizer(torch.randn(6, 4)))
    assert quantizer(torch.randn(6, 4)).stats["temperature"].item() == pytest.approx(math.exp(-1.25))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"type": "V"}, "type: expected one of I, II, III, IV, got 'V'"),
        ({"type": "II"}, "type II has a variance for each image: give the number of positions of an image"),
        ({"positions": 0}, "positions must be at least 1, got 0"),
        ({"elements": -3}, "elements must be at least 1, got -3"),
        ({"init": "kmeans"}, "init: expected one of normal, unit-sphere, got 'kmeans'"),
        ({"init_variance": 0}, "init_variance must be positive and floor not negative"),
        ({"temperature": {"start": 0}}, "temperature: it must be positive, got start 0.0"),
        ({"temperature": {"time": "fraction"}}, "time: fraction needs the planned number of optimizer steps"),
    ],
)
def test_wrong_options_raise_with_reason(options: dict[str, object], message: str) -> None:
    with pytest.raises(ArcvqError) as raised:
        SQ(4, 8, **options)
    assert message in str(raised.value)


def test_other_image_size_raises_for_type_two() -> None:
    with pytest.raises(ArcvqError, match=r"4 tokens .* 6 tokens"):
        SQ(4, 8, type="II", positions=4)(torch.randn(6, 4))


def test_evaluation_option_selects_likeliest_code_or_draw() -> None:
    shares = {}
    latents = torch.full((4000, 4), 0.1)
    for evaluation in ("argmax", "sample"):
        torch.manual_seed(0)
        quantizer = SQ(4, 2, floor=0.0, init_variance=1.0, evaluation=evaluation)
        with torch.no_grad():
            quantizer.codebook.copy_(torch.tensor([[-1.0] * 4, [1.0] * 4]))
        out = quantizer.eval()(latents)
        torch.testing.assert_close(out.quantized, quantizer.decode(out.tokens))
        shares[evaluation] = out.tokens.float().mean().item()
    # −‖z − e‖² / 2 differs by 4 · ((1.1)² − (0.9)²) / 2.
    assert shares["argmax"] == 1.0
    assert shares["sample"] == pytest.approx(torch.sigmoid(torch.tensor(0.8)).item(), abs=0.03)
    with pytest.raises(ArcvqError, match="evaluation"):
        SQ(4, 2, evaluation="often")


def test_arc_loss_is_added_to_elbo() -> None:
    latents = torch.randn(30, 4)
    torch.manual_seed(1)
    plain = SQ(4, 8, elements=48)
    torch.manual_seed(1)
    quantizer = SQ(4, 8, elements=48, arc=Arc(weight=0.5, decay=0.1), ball=Ball(alpha=0.2))
    for step in range(3):
        torch.manual_seed(2)
        expected = plain(latents)
        torch.manual_seed(2)
        out = quantizer(latents)
        assert torch.equal(out.quantized, expected.quantized)
        weight, arc = (
            0.5 * math.exp(-0.1 * step),
            arc_loss(latents, quantizer.codebook, scale=10.0, margin=0.1, top_k=3),
        )
        assert out.losses["arc"].item() == pytest.approx(weight * arc.item(), rel=1e-5)
        assert out.loss.item() == pytest.approx(expected.loss.item() + weight * arc.item(), rel=1e-5)
        assert out.stats["ball_radius"].item() == pytest.approx(math.exp(0.2 * step))
        quantizer.after_step(out)
        plain.after_step(expected)
        with torch.no_grad():
            assert quantizer.codebook.norm(dim=1).max() <= math.exp(0.2 * (step + 1)) * (1 + 1e-6)
            plain.codebook.copy_(quantizer.codebook)
    assert "arc" not in quantizer.eval()(latents).losses


def test_adaptive_weight_follows_perplexity_of_likeliest_codes() -> None:
    quantizer = with_variance(1e-3, arc=Arc(schedule="adaptive", weight=2.0, target=0.5, smoothing=0.0))
    codes = quantizer.codebook.detach().clone()
    quantizer.after_step(quantizer(codes[[0, 0, 1, 1]]))  # two codes of eight: half the target
    out = quantizer(codes)
    assert out.stats["arc_weight"].item() == pytest.approx(1.0, rel=1e-5)
    quantizer.after_step(out)
    assert quantizer(codes).stats["arc_weight"].item() == 0.0
