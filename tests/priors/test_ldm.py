"""Latent diffusion: the UNet of the paper's Table 8, what is learned, and what sampling does with it."""

import sys
from typing import Any

import pytest
import torch
from every_prior import GRID, SMALL, small_generator, small_prior, some_values
from torch import Tensor

from arcvq.errors import ArcvqError
from arcvq.priors import PRIORS, Grid, Ldm, LdmConfig, Noise, SamplingOptions
from arcvq.priors.diffusion import add_noise, ddim_step, ddim_times, signal_shares
from arcvq.systems import PriorRunConfig, load_config

IMAGENET = Grid(height=32, width=32, codebook_size=1024, latent_dim=16, classes=1000)
# preset → the grid of its tokenizer's latents and the number of parameters
SIZES = {
    "sample/ldm": (Grid(height=7, width=7, codebook_size=256, latent_dim=16, classes=10), 1_009_456),
    "cifar10/ldm": (Grid(height=8, width=8, codebook_size=512, latent_dim=64, classes=10), 25_154_752),
    "photos-128/ldm": (Grid(height=16, width=16, codebook_size=1024, latent_dim=16, classes=139), 42_220_688),
    "photos/ldm": (Grid(height=32, width=32, codebook_size=1024, latent_dim=16, classes=139), 58_109_744),
    "imagenet/arcvq-ldm": (IMAGENET, 395_039_504 + 1001 * 512),
}


def ldm(grid: Grid = GRID, **settings: Any) -> Ldm:
    """An untrained small prior."""
    torch.manual_seed(0)
    config = {**vars(SMALL["ldm"]), **settings}
    prior = Ldm(grid, LdmConfig(**config))
    return prior.eval()


def on_meta(preset: str) -> Ldm:
    """The prior of a preset, without its memory."""
    config = load_config(preset)
    assert isinstance(config, PriorRunConfig)
    with torch.device("meta"):
        prior = PRIORS.build(config.prior, SIZES[preset][0])
    assert isinstance(prior, Ldm)
    return prior


class Recorder:
    """Stands in for `Ldm.predict`: keeps what it was called with and answers with a function of it."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.times: list[Tensor] = []
        self.labels: list[Tensor] = []

    def __call__(self, noisy: Tensor, time: Tensor, labels: Tensor) -> Tensor:
        self.times.append(time.clone())
        self.labels.append(labels.clone())
        return self.answer(noisy, time, labels)


def replace_network(prior: Ldm, answer: Any) -> Recorder:
    recorder = Recorder(answer)
    prior.__dict__["predict"] = recorder
    return recorder


class CountedNoise(Noise):
    draws = 0

    def normal(self, *shape: int) -> Tensor:
        self.draws += 1
        return super().normal(*shape)


def sample(prior: Ldm, labels: Tensor | None = None, noise: Noise | None = None, **options: Any) -> Tensor:
    noise = noise or Noise(0, range(2 if labels is None else len(labels)))
    return prior.sample(labels, noise, SamplingOptions(**options), batch=len(noise.generators))


# ---- the network ----------------------------------------------------------------------------------------------------------


def test_preset_is_table_8() -> None:
    config: Any = load_config("imagenet/arcvq-ldm")
    prior = config.prior
    assert (prior.width, prior.multipliers, prior.blocks, prior.head_width) == (256, (1, 2, 4), 2, 32)
    assert [32 // factor for factor in prior.attention] == [32, 16, 8]
    assert (prior.context_width, prior.steps, prior.eta) == (512, 250, 1.0)
    assert (prior.label_dropout, prior.scale_by_std) == (0.1, False)
    assert (config.data.image_size, config.data.batch_size, config.data.flip) == (256, 64, False)
    training = config.training
    assert (training.steps, training.learning_rate, training.ema) == (1_200_000, 6.4e-5, 0.9999)
    assert (training.weight_decay, training.betas, training.schedule) == (0.01, (0.9, 0.999), "constant")


@pytest.mark.parametrize("preset", SIZES)
def test_preset_has_its_number_of_parameters(preset: str) -> None:
    assert sum(each.numel() for each in on_meta(preset).parameters()) == SIZES[preset][1]


def test_heads_of_the_paper_have_32_channels_at_every_level() -> None:
    layers = [each for each in on_meta("imagenet/arcvq-ldm").unet.modules() if type(each).__name__ == "Attention"]
    # Two in each of the blocks: two per level on the way down, one in the middle, three per level on the way up.
    assert len(layers) == 2 * (3 * 2 + 1 + 3 * 3)
    heads: set[tuple[int, int]] = {(each.inner_dim, each.heads) for each in layers}  # type: ignore[arg-type]
    assert heads == {(256, 8), (512, 16), (1024, 32)}


def test_attention_is_at_the_levels_of_the_configuration_and_in_the_middle() -> None:
    prior = ldm(multipliers=(1, 2, 2), attention=(2,))
    names = [name for name, each in prior.unet.named_modules() if type(each).__name__ == "Transformer2DModel"]
    assert {name.split(".attentions")[0] for name in names} == {"down_blocks.1", "mid_block", "up_blocks.1"}


def test_untrained_network_predicts_0_and_all_its_blocks_are_identities() -> None:
    prior = ldm()
    found = prior.predict(some_values(prior, 3), torch.tensor([5, 500, 999]), torch.tensor([0, 1, 3]))
    assert not found.any()
    zero = {name for name, each in prior.unet.named_parameters() if not each.any() and name.endswith("weight")}
    last = [".conv2.weight", ".proj_out.weight", "conv_out.weight"]
    assert zero == {name for name, _ in prior.unet.named_parameters() if any(name.endswith(each) for each in last)}
    # On the way down: 2 × 1 residual blocks and 1 transformer; middle 2 and 1; up 2 × 2 and 2; and the network's own.
    assert len(zero) == (2 + 1) + (2 + 1) + (4 + 2) + 1


def test_class_reaches_the_prediction_as_one_context_token() -> None:
    prior = small_prior("ldm")
    assert isinstance(prior, Ldm)
    assert prior.classes.weight.shape == (GRID.classes + 1, 8)
    values, time = some_values(prior, 1), torch.tensor([300])
    found = [prior.predict(values, time, torch.tensor([label])) for label in range(4)]
    assert all(not torch.equal(found[0], other) for other in found[1:])


def test_configuration_takes_no_memory_on_meta_and_constants_are_not_saved() -> None:
    prior = on_meta("imagenet/arcvq-ldm")
    assert all(each.is_meta for each in prior.parameters())
    extra = set(prior.state_dict()) - {name for name, _ in prior.named_parameters()}
    assert extra == {"scale"}


@pytest.mark.parametrize(("height", "width", "levels"), [(7, 7, 4), (3, 4, 3), (5, 2, 2)])
def test_odd_grids_are_halved_and_doubled_again_down_to_a_side_of_1(height: int, width: int, levels: int) -> None:
    grid = Grid(height=height, width=width, codebook_size=11, latent_dim=2)
    prior = ldm(grid, multipliers=(1,) * levels)
    values = some_values(prior, 2)
    assert prior.predict(values, torch.tensor([5]), torch.tensor([0, 0])).shape == values.shape
    with pytest.raises(ArcvqError, match=f"{height}×{width} has room for {levels} levels: prior.multipliers"):
        ldm(grid, multipliers=(1,) * (levels + 1))


def test_missing_diffusers_is_answered_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(ArcvqError, match=r"pip install 'arcvq\[generate\]'") as raised:
        ldm()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 0}, "prior.width"),
        ({"width": 12, "groups": 8}, "prior.groups"),
        ({"multipliers": ()}, "prior.multipliers"),
        ({"multipliers": (1, 0)}, "prior.multipliers"),
        ({"width": 4096, "multipliers": (4,)}, "largest multiplier"),
        ({"attention": (1, 4)}, r"prior.attention must be some of \[1, 2\]"),
        ({"attention": (3,)}, "prior.attention"),
        ({"attention": (1,), "head_width": 16}, "head_width must divide the 8 channels at factor 1"),
        ({"attention": (), "multipliers": (1, 3), "head_width": 16}, "24 channels at factor 2"),
        ({"blocks": 0}, "prior.blocks"),
        ({"dropout": 1.0}, "prior.dropout"),
        ({"eta": 1.5}, "prior.eta"),
        ({"steps": 30}, "prior.steps must be one of 2"),
        ({"steps": 0}, "prior.steps"),
        ({"label_dropout": 1.0}, "prior.label_dropout"),
    ],
)
def test_wrong_setting_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArcvqError, match=message):
        LdmConfig(**{**vars(SMALL["ldm"]), **settings})


# ---- training -------------------------------------------------------------------------------------------------------------


def test_loss_is_0_for_the_true_noise_of_scaled_latents() -> None:
    prior = ldm().train()
    values = 5 * some_values(prior, 200)
    prior.init_from_values(values)

    def true_noise(noisy: Tensor, time: Tensor, labels: Tensor) -> Tensor:
        share = signal_shares()[time][:, None, None, None].float()
        return (noisy - share.sqrt() * values / values.std()) / (1 - share).sqrt()

    replace_network(prior, true_noise)
    assert prior(values)["squared_error"].item() == pytest.approx(0, abs=1e-6)
    assert prior.evaluate(values, None, Noise(0, range(200))).max().item() == pytest.approx(0, abs=1e-6)


def test_loss_of_an_untrained_network_is_the_variance_of_the_noise() -> None:
    prior = ldm().train()
    torch.manual_seed(1)
    assert prior(some_values(prior, 100))["squared_error"].item() == pytest.approx(1, abs=0.05)


def test_training_draws_all_times_evenly_and_hides_a_tenth_of_the_classes() -> None:
    grid = Grid(height=1, width=1, codebook_size=11, latent_dim=1, classes=3)
    prior = ldm(grid, multipliers=(1,)).train()
    recorder = replace_network(prior, lambda noisy, time, labels: noisy)
    torch.manual_seed(1)
    prior(torch.randn(50_000, 1, 1, 1), torch.arange(50_000) % 3)
    times, labels = recorder.times[0], recorder.labels[0]
    assert (times.min(), times.max()) == (0, 999)
    assert (times.bincount() - 50).abs().max() < 50
    assert (labels == prior.null).float().mean().item() == pytest.approx(0.1, abs=0.005)
    shown = labels != prior.null
    assert torch.equal(labels[shown], (torch.arange(50_000) % 3)[shown])


def test_evaluation_takes_one_time_from_each_quarter_for_each_image() -> None:
    prior = ldm()
    recorder = replace_network(prior, lambda noisy, time, labels: 0 * noisy)
    errors = prior.evaluate(some_values(prior, 50), torch.zeros(50, dtype=torch.int64), Noise(0, range(50)))
    for quarter, time in enumerate(recorder.times):
        assert torch.equal(time // 250, torch.full((50,), quarter))
        assert len(time.unique()) > 25
    assert len(recorder.times) == 4
    assert not any(labels.any() for labels in recorder.labels)  # no class is hidden
    assert errors.mean().item() == pytest.approx(1, abs=0.02)


def test_scale_is_one_over_the_standard_deviation_unless_switched_off() -> None:
    values = 3 + 2 * some_values(ldm(), 500)
    scaled, plain = ldm(), ldm(scale_by_std=False)
    for prior in (scaled, plain):
        prior.init_from_values(values)
    assert scaled.scale.item() == pytest.approx(0.5, rel=0.02)
    assert scaled.describe()["latents are multiplied by"] == f"{scaled.scale.item():.6g}"
    assert plain.scale == 1
    with pytest.raises(ArcvqError, match="standard deviation 0"):
        scaled.init_from_values(torch.ones(4, 8, 3, 4))


# ---- sampling -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("guidance", "asked"), [(1.0, 4), (0.0, 8), (1.4, 8)])
def test_guidance_moves_from_the_prediction_without_the_class_to_that_with_it(guidance: float, asked: int) -> None:
    prior, labels = ldm(eta=0.0), torch.tensor([0, 2, 1, 2])
    recorder = replace_network(prior, lambda noisy, time, labels: noisy + labels[:, None, None, None])
    found = sample(prior, labels, guidance=guidance, steps=4)
    assert {len(each) for each in recorder.labels} == {asked}
    expected, shares, times = Noise(0, range(4)).normal(8, 3, 4), signal_shares().tolist(), ddim_times(4)
    for now, following in zip(times, [*times[1:], 0]):
        pull = prior.null + guidance * (labels - prior.null)
        noise = expected + pull[:, None, None, None]
        expected = ddim_step(expected, noise, shares[now], shares[following], 0.0, None)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_sampling_asks_at_the_papers_times_by_default() -> None:
    prior = ldm(steps=250)
    recorder = replace_network(prior, lambda noisy, time, labels: noisy)
    sample(prior)
    assert torch.cat(recorder.times).tolist() == list(range(997, 0, -4))


def test_only_the_first_noise_is_drawn_with_eta_0_and_more_at_each_step_above() -> None:
    prior = small_prior("ldm")
    assert isinstance(prior, Ldm)
    counts = []
    for eta in (0.0, 0.5):
        noise = CountedNoise(0, range(2))
        sample(prior, noise=noise, eta=eta, steps=4)
        counts.append(noise.draws)
    assert counts == [1, 5]
    assert torch.equal(sample(prior, eta=0.0), sample(prior, eta=0.0))
    assert torch.equal(sample(prior), sample(prior, eta=1.0))  # the prior's own
    assert not torch.equal(sample(prior), sample(prior, eta=0.0))


@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_sampling_with_the_exact_noise_recovers_the_latents_law(eta: float) -> None:
    """Latents of mean 4 and deviation 2 that are divided by 2."""
    prior = ldm(Grid(height=8, width=8, codebook_size=11, latent_dim=32), steps=250)
    prior.scale.fill_(0.5)

    def exact_noise(noisy: Tensor, time: Tensor, labels: Tensor) -> Tensor:
        share = signal_shares()[time].float()
        return (1 - share).sqrt() * (noisy - share.sqrt() * 2)  # the variance is 1 at every time

    replace_network(prior, exact_noise)
    latents = sample(prior, noise=Noise(0, range(16)), eta=eta)
    assert latents.mean().item() == pytest.approx(4, abs=0.05)
    assert latents.std().item() == pytest.approx(2, rel=0.03)


def test_trained_prior_samples_the_latents_of_the_class_that_is_asked_for() -> None:
    """Latents around 3 in class 0 and around −1 in class 1."""
    grid = Grid(height=2, width=2, codebook_size=11, latent_dim=2, classes=2)
    prior = ldm(grid, width=16, multipliers=(1,), attention=(), head_width=16, steps=20, eta=0.0).train()
    torch.manual_seed(1)
    optimizer, labels = torch.optim.Adam(prior.parameters(), lr=5e-3), torch.arange(128) % 2
    centres = torch.tensor([3.0, -1.0])
    prior.init_from_values(centres[labels])
    for _ in range(150):
        values = (centres[labels] + 0.2 * torch.randn(2, 2, 2, 128)).movedim(-1, 0)
        prior(values, labels)["squared_error"].backward()
        optimizer.step()
        optimizer.zero_grad()
    found = sample(prior.eval(), torch.arange(32) % 2).flatten(1).mean(1)
    assert torch.equal(found > 1, torch.arange(32) % 2 == 0)
    assert found[::2].median().item() == pytest.approx(3, abs=0.3)
    assert found[1::2].median().item() == pytest.approx(-1, abs=0.3)
    hidden = sample(prior, torch.full((32,), prior.null)).flatten(1).mean(1)
    assert 4 < (hidden > 1).sum() < 28  # without a class, images of both


def test_progress_is_reported_at_every_step() -> None:
    done = []
    prior = ldm()
    prior.sample(
        None, Noise(0, [0]), SamplingOptions(), batch=1, progress=lambda step, steps: done.append((step, steps))
    )
    assert done == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_steps_that_do_not_divide_the_times_are_refused() -> None:
    with pytest.raises(ArcvqError, match="steps must be one of 2, 4"):
        sample(ldm(), steps=30)


def test_known_tokens_are_refused() -> None:
    with pytest.raises(ArcvqError, match="over latents"):
        ldm().sample(None, Noise(0, [0]), SamplingOptions(), batch=1, known=torch.zeros(1, 3, 4, dtype=torch.int64))


def test_latents_are_decoded_as_the_codes_that_the_tokenizers_own_rule_chooses() -> None:
    generator = small_generator("ldm")
    tokenizer, latents = generator.tokenizer, some_values(generator.prior, 5)
    images, output = generator.decode(latents), tokenizer.quantize(latents)
    assert torch.equal(generator.decode(output.quantized), images)
    assert torch.equal(tokenizer.decode(output.tokens), images)
    # Codes are chosen by angle here, so the length of a latent says nothing.
    assert torch.equal(generator.decode(3 * latents), images)


def test_noisy_latents_follow_the_schedule_of_their_time() -> None:
    prior = ldm()
    seen: list[Tensor] = []
    replace_network(prior, lambda noisy, time, labels: seen.append(noisy) or noisy)
    values, noise, time = some_values(prior, 3), torch.randn(3, 8, 3, 4), torch.tensor([0, 499, 999])
    prior.squared_error(values, time, torch.zeros(3, dtype=torch.int64), noise)
    torch.testing.assert_close(seen[0], add_noise(values, noise, signal_shares()[time].float()))
