"""SAMP's options: its four parts, their schedules, and the adaptive weight."""

import math

import pytest
import torch

from arcvq import VQ, Arc, ArcVQ, ArcvqError, Ball, Samp
from arcvq.functional import arc_loss


def seeded(cls: type[VQ], **options: object) -> VQ:
    torch.manual_seed(11)
    return cls(4, 16, **options)


def test_arcvq_without_ball_arc_and_unit_init_is_cosine_vq() -> None:
    baseline = seeded(VQ, metric="cosine")
    stripped = seeded(ArcVQ, ball=None, arc=None, init="uniform")
    latents = torch.randn(2, 4, 5, 5)
    for quantizer in (baseline, stripped):
        optimizer = torch.optim.Adam(quantizer.parameters(), lr=0.1)
        for _ in range(3):
            out = quantizer(latents)
            optimizer.zero_grad()
            out.loss.backward()
            optimizer.step()
            quantizer.after_step(out)
    assert torch.equal(baseline.codebook, stripped.codebook)
    ours, theirs = baseline(latents), stripped(latents)
    assert torch.equal(ours.tokens, theirs.tokens)
    assert torch.equal(ours.loss, theirs.loss)
    assert ours.stats.keys() == theirs.stats.keys()


def test_vq_with_all_four_options_is_arcvq() -> None:
    built = seeded(VQ, metric="cosine", init="unit-sphere", ball=Ball(), arc=Arc())
    latents = torch.randn(2, 4, 5, 5)
    ours, theirs = built(latents), seeded(ArcVQ)(latents)
    assert torch.equal(ours.tokens, theirs.tokens)
    assert torch.equal(ours.loss, theirs.loss)


def test_each_option_changes_only_its_own_effect() -> None:
    latents = torch.randn(2, 4, 5, 5)
    full = seeded(ArcVQ)
    out = full(latents)

    no_arc = seeded(ArcVQ, arc=None)
    without_arc = no_arc(latents)
    assert "arc" not in without_arc.losses
    assert torch.equal(without_arc.tokens, out.tokens)
    assert torch.equal(without_arc.losses["codebook"], out.losses["codebook"])

    no_ball = seeded(ArcVQ, ball=None)
    without_ball = no_ball(latents)
    assert torch.equal(without_ball.loss, out.loss)
    assert "ball_radius" not in without_ball.stats
    for quantizer, output in ((full, out), (no_ball, without_ball)):
        with torch.no_grad():
            quantizer.codebook.mul_(3)
        quantizer.after_step(output)
    torch.testing.assert_close(full.codebook.detach().norm(dim=1), torch.full((16,), math.exp(3e-4)))
    torch.testing.assert_close(no_ball.codebook.detach().norm(dim=1), torch.full((16,), 3.0))

    other_start = seeded(ArcVQ, init="uniform")
    assert other_start.codebook.abs().max() <= 1 / 16
    torch.testing.assert_close(
        torch.nn.functional.normalize(other_start.codebook, dim=1), seeded(ArcVQ).codebook, rtol=1e-5, atol=1e-6
    )

    euclidean = seeded(ArcVQ, metric="euclidean")
    expected = torch.cdist(latents.movedim(1, -1).reshape(-1, 4), euclidean.codebook).argmin(dim=1)
    assert torch.equal(euclidean(latents).tokens.reshape(-1), expected)


@pytest.mark.parametrize(("init", "norms"), [("unit-sphere", 1.0), ("normal", None), ("uniform", None)])
def test_init_option_sets_initial_codes(init: str, norms: float | None) -> None:
    codebook = ArcVQ(64, 512, init=init).codebook.detach()
    if norms is not None:
        torch.testing.assert_close(codebook.norm(dim=1), torch.full((512,), norms))
    elif init == "normal":
        assert codebook.std().item() == pytest.approx(1.0, abs=0.02)
    else:
        assert codebook.abs().max() <= 1 / 512
        assert codebook.std().item() == pytest.approx(1 / 512 / math.sqrt(3), rel=0.02)


def test_defaults_are_the_papers() -> None:
    config = ArcVQ(64, 512).config
    assert (config.arc.scale, config.arc.margin, config.arc.top_k, config.arc.weight) == (10.0, 0.1, 3, 1.0)
    assert (config.arc.decay, config.ball.alpha, config.commitment_weight) == (5e-4, 3e-4, 0.25)
    assert (config.metric, config.init, config.legacy) == ("cosine", "unit-sphere", False)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_arc_term_is_weighted_functional_arc_loss(metric: str) -> None:
    quantizer = ArcVQ(4, 16, metric=metric, arc=Arc(scale=7.0, margin=0.3, top_k=5, weight=0.5))
    latents = torch.randn(40, 4)
    expected = 0.5 * arc_loss(latents, quantizer.codebook, 7.0, 0.3, 5)
    torch.testing.assert_close(quantizer(latents).losses["arc"], expected)


def test_evaluation_has_no_arc_and_entropy_term() -> None:
    out = ArcVQ(4, 16, entropy={"weight": 1.0}).eval()(torch.randn(2, 4))  # fewer tokens than top_k
    assert set(out.losses) == {"codebook", "commitment"}


def test_radius_and_weight_follow_step() -> None:
    quantizer = ArcVQ(4, 16, ball=Ball(alpha=0.1), arc=Arc(decay=0.2, weight=2.0))
    latents = torch.randn(12, 4)
    for step in range(4):
        out = quantizer(latents)
        assert out.stats["ball_radius"].item() == pytest.approx(math.exp(0.1 * step), rel=1e-6)
        assert out.stats["arc_weight"].item() == pytest.approx(2 * math.exp(-0.2 * step), rel=1e-6)
        quantizer.after_step(out)


@pytest.mark.parametrize("match_run", ["mnist", "cifar10", "imagenet"])
def test_match_run_ends_at_radius_and_weight_of_named_run(match_run: str) -> None:
    samp = Samp(Ball(match_run=match_run, time="fraction"), Arc(match_run=match_run), total_steps=100)
    ends = {"mnist": (6974, 14.75), "cifar10": (1556, 12.25), "imagenet": (605, 64.0593)}
    radius, exponent = ends[match_run]
    assert samp.radius(torch.tensor(100)).item() == pytest.approx(radius, rel=1e-3)
    assert samp.weight(torch.tensor(100)).item() == pytest.approx(math.exp(-exponent), rel=1e-2)
    assert samp.radius(torch.tensor(0)).item() == 1.0


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "oscillating"])
def test_other_schedules_reach_expected_midpoint(schedule: str) -> None:
    samp = Samp(
        Ball(schedule=schedule, start=2.0, end=4.0), Arc(schedule=schedule, weight=1.0, end=0.5), total_steps=10
    )
    half = torch.tensor(5)
    radius = {"constant": 2.0, "linear": 3.0, "cosine": 3.0, "oscillating": 4.0}[schedule]
    weight = {"constant": 1.0, "linear": 0.75, "cosine": 0.75, "oscillating": 0.5}[schedule]
    assert samp.radius(half).item() == pytest.approx(radius, rel=1e-6)
    assert samp.weight(half).item() == pytest.approx(weight, rel=1e-6)


def test_adaptive_weight_follows_perplexity() -> None:
    quantizer = ArcVQ(2, 4, arc=Arc(schedule="adaptive", weight=2.0, target=0.5, smoothing=0.0), ball=None)
    with torch.no_grad():
        quantizer.codebook.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]))
    codes = quantizer.codebook.detach().clone()
    out = quantizer(codes[[0, 0, 0, 0]])
    assert out.stats["arc_weight"].item() == 2.0
    quantizer.after_step(out)  # one code of four: a perplexity of 1/4, half the target
    out = quantizer(codes)
    assert out.stats["arc_weight"].item() == pytest.approx(1.0, rel=1e-6)
    quantizer.after_step(out)  # all four: beyond the target
    out = quantizer(codes[[0, 0, 0, 0]])
    assert out.stats["arc_weight"].item() == 0.0
    quantizer.after_step(out)
    assert quantizer(codes).stats["arc_weight"].item() == pytest.approx(1.0, rel=1e-6)


def test_adaptive_perplexity_is_smoothed() -> None:
    quantizer = ArcVQ(4, 8, arc=Arc(schedule="adaptive", smoothing=0.9))
    out = quantizer(torch.randn(100, 4))
    quantizer.after_step(out)
    expected = 0.1 * out.stats["perplexity"] / 8
    torch.testing.assert_close(quantizer.samp.perplexity_ema, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arc": Arc(scale=0.0)}, "arc: expected scale > 0, top_k >= 1 and 0 <= margin <= pi, got scale 0.0"),
        ({"arc": Arc(top_k=0)}, "got scale 10.0, top_k 0"),
        ({"arc": Arc(margin=4.0)}, "margin 4.0"),
        ({"arc": Arc(schedule="adaptive", target=0.0)}, "arc: expected 0 < target <= 1"),
        ({"arc": Arc(schedule="adaptive", smoothing=1.0)}, "0 <= smoothing < 1"),
        ({"arc": Arc(schedule="linear")}, "needs the planned number of optimizer steps: give total_steps"),
        ({"ball": Ball(match_run="cifar10")}, "match_run: cifar10 needs the planned number"),
        ({"ball": Ball(match_run="cifar"), "total_steps": 10}, "unknown run 'cifar'"),
        ({"ball": Ball(alpha=-0.1)}, "ball: alpha must not be negative, got -0.1"),
        (
            {"ball": Ball(match_run="mnist", schedule="linear"), "total_steps": 10},
            "ball: match_run derives the rate of an exponential schedule, and this one is linear; leave it out",
        ),
        (
            {"arc": Arc(match_run="mnist", schedule="adaptive")},
            "arc: match_run derives the rate of an exponential schedule",
        ),
        ({"ball": Ball(time="fraction")}, "time: fraction needs the planned number"),
        ({"ball": Ball(schedule="linear", duration=-1.0)}, "duration must be positive, got -1.0"),
        ({"ball": Ball(schedule="exp")}, "ball.schedule: expected one of exponential, constant"),
        ({"ball": Ball(time="epochs")}, "ball.time: expected one of steps, fraction, got 'epochs'"),
    ],
)
def test_wrong_options_raise_at_construction(options: dict[str, object], message: str) -> None:
    with pytest.raises(ArcvqError) as raised:
        ArcVQ(4, 8, **options)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_margin_of_pi_gives_finite_loss() -> None:
    out = ArcVQ(4, 8, arc=Arc(margin=math.pi))(torch.randn(2, 4, 3))
    assert out.loss.isfinite()


def test_overflowing_radius_is_finite_and_bounds_nothing() -> None:
    samp = Samp(Ball(alpha=3e-4))
    radius = samp.radius(torch.tensor(1_000_000))
    assert radius is not None
    assert radius.item() == torch.finfo(torch.float32).max
    codes = torch.randn(5, 4)
    kept = codes.clone()
    samp.bound_(codes, torch.tensor(1_000_000))
    assert torch.equal(codes, kept)


def test_samp_raises_on_unknown_schedule_and_missing_arc() -> None:
    with pytest.raises(ArcvqError, match="unknown schedule kind 'exp'"):
        Samp(Ball(schedule="exp"))
    with pytest.raises(ArcvqError, match="this Samp has no ArcLoss"):
        Samp(Ball()).loss(torch.randn(5, 4), torch.randn(3, 4))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_adaptive_perplexity_keeps_layer_dtype(dtype: torch.dtype) -> None:
    quantizer = ArcVQ(8, 16, arc=Arc(schedule="adaptive", smoothing=0.0)).to(dtype)
    quantizer.after_step(quantizer(torch.randn(2, 8, 4, 4, dtype=dtype)))
    assert quantizer.samp.perplexity_ema.dtype == dtype
    assert 0 < quantizer.samp.perplexity_ema < 1
