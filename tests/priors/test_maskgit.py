"""MaskGIT: which positions are masked, what the loss counts, the bound on the likelihood, and sampling in a few steps."""

import math
from dataclasses import replace
from itertools import pairwise, permutations
from typing import Any

import pytest
import torch
from every_prior import GRID, grid_of, small_prior, some_values
from torch import Tensor

from arcvq.errors import ArcvqError
from arcvq.priors import PRIORS, Grid, MaskGit, MaskGitConfig, Noise, SamplingOptions
from arcvq.priors.masking import halton_order, lowest, masked_after, radical_inverse, training_count
from arcvq.systems import PriorRunConfig, load_config

NAMES = ("maskgit", "maskgit depth 3")
ORDERS = ("confidence", "halton")
LABELS = torch.tensor([0, 2, 1, 2])


def prior_of(name: str = "maskgit", **settings: Any) -> MaskGit:
    prior = small_prior(name)
    assert isinstance(prior, MaskGit)
    prior.config = replace(prior.config, **settings)
    return prior


def fresh(grid: Grid, **settings: Any) -> MaskGit:
    """An untrained prior: all tokens are equally likely to it."""
    torch.manual_seed(0)
    prior = MaskGit(grid, MaskGitConfig(**{"width": 8, "layers": 1, "heads": 2, "dropout": 0.0, **settings}))
    return prior.eval()


def sample(prior: MaskGit, known: Tensor | None = None, seed: int = 0, **options: Any) -> Tensor:
    noise = Noise(seed, range(4))
    return prior.sample(LABELS, noise, SamplingOptions(**options), batch=4, known=known)


class Recorder:
    """Records what `logits` is called with, and gives the logits of some values in place of the prior's."""

    def __init__(self, prior: MaskGit, monkeypatch: pytest.MonkeyPatch, target: Tensor | None = None) -> None:
        self.masks: list[Tensor] = []
        self.tokens: list[Tensor] = []
        own = prior.logits

        def logits(tokens: Tensor, masked: Tensor, labels: Tensor) -> Tensor:
            self.masks.append(masked.clone())
            self.tokens.append(tokens.clone())
            found = own(tokens, masked, labels)
            if target is None:
                return found
            wanted = prior.by_position(target).repeat(len(tokens) // len(target), 1, 1)
            return torch.full_like(found, -50.0).scatter_(-1, wanted[..., None], 50.0)

        monkeypatch.setattr(prior, "logits", logits)

    @property
    def counts(self) -> Tensor:
        """How many positions were masked at each call: (calls, B)."""
        return torch.stack([mask.sum(1) for mask in self.masks])


# ---- masks --------------------------------------------------------------------------------------------------------------


def test_lowest_marks_as_many_as_each_row_asks_for() -> None:
    scores = torch.tensor([[3.0, 1.0, 2.0], [1.0, 1.0, 1.0], [torch.inf, 5.0, -1.0]])
    expected = [[False, True, False], [True, True, False], [False, False, False]]
    assert lowest(scores, torch.tensor([1, 2, 0])).tolist() == expected


def test_masked_share_in_training_has_the_law_of_the_cosine(monkeypatch: pytest.MonkeyPatch) -> None:
    prior = fresh(Grid(height=8, width=8, codebook_size=3))
    recorder = Recorder(prior, monkeypatch)
    torch.manual_seed(1)
    prior(torch.zeros(4000, 8, 8, dtype=torch.int64))
    share = recorder.counts[0] / 64
    assert share.min() >= 1 / 64
    assert share.mean().item() == pytest.approx(2 / math.pi, abs=0.02)
    # P(cos(πr/2) ≤ x) = 1 − 2/π · arccos(x)
    for x in (0.25, 0.5, 0.75, 0.95):
        assert (share <= x).float().mean().item() == pytest.approx(1 - 2 / math.pi * math.acos(x), abs=0.04)
    places = recorder.masks[0].float().mean(0)
    assert (places - places.mean()).abs().max() < 0.05


def test_training_masks_at_least_one_position_and_at_most_all() -> None:
    assert training_count(torch.tensor([0.0, 0.5, 1 - 2**-24]), 12).tolist() == [12, 8, 1]


@pytest.mark.parametrize(
    ("steps", "total"), [(1, 64), (5, 64), (12, 64), (12, 12), (12, 5), (64, 64), (12, 1), (12, 0)]
)
def test_masked_positions_become_fewer_with_each_step_until_none_is_left(steps: int, total: int) -> None:
    start = torch.tensor([total])
    counts = [total]
    for step in range(steps):
        counts.append(int(masked_after(step, steps, start, torch.tensor([counts[-1]]))))
    assert all(after < before or after == before == 0 for before, after in pairwise(counts))
    assert counts[-1] == 0
    if total == 64 and steps < 64:
        planned = [max(1, math.floor(64 * math.cos(math.pi / 2 * (step + 1) / steps))) for step in range(steps - 1)]
        assert counts == [64, *planned, 0]


@pytest.mark.parametrize(("height", "width"), [(1, 1), (8, 8), (3, 5), (7, 7), (1, 9), (16, 12)])
def test_halton_order_is_a_permutation_of_the_grid(height: int, width: int) -> None:
    assert sorted(halton_order(height, width)) == list(range(height * width))


def test_halton_order_begins_with_the_known_points() -> None:
    # (1/2, 1/3), (1/4, 2/3), (3/4, 1/9), (1/8, 4/9), (5/8, 7/9), (3/8, 2/9)
    assert radical_inverse(torch.arange(1, 7), 2, 8).tolist() == [4, 2, 6, 1, 5, 3]
    assert radical_inverse(torch.arange(1, 7), 3, 9).tolist() == [3, 6, 1, 4, 7, 2]
    assert halton_order(8, 9)[:6] == (4 * 9 + 3, 2 * 9 + 6, 6 * 9 + 1, 1 * 9 + 4, 5 * 9 + 7, 3 * 9 + 2)


def test_first_positions_of_the_halton_order_are_spread_over_the_grid() -> None:
    for count in (8, 16, 32):
        rows = torch.tensor(halton_order(16, 16)[:count]) // 16
        columns = torch.tensor(halton_order(16, 16)[:count]) % 16
        quarters = (rows // 8 * 2 + columns // 8).bincount(minlength=4)
        assert quarters.max() <= count / 4 + 2


# ---- the loss and the likelihood ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_loss_is_the_mean_over_masked_tokens_with_label_smoothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prior = prior_of(name, label_smoothing=0.1, label_dropout=0.0)
    recorder, values = Recorder(prior, monkeypatch), some_values(prior, 4)
    loss = prior(values, LABELS)["cross_entropy"]
    (masked,), tokens = recorder.masks, prior.by_position(values)
    losses = -prior.logits(tokens, masked, LABELS).double().log_softmax(-1)
    chosen = losses.gather(-1, tokens[..., None]).squeeze(-1)
    smoothed = 0.9 * chosen + 0.1 * losses.mean(-1)
    assert loss.item() == pytest.approx(smoothed[masked].mean().item(), rel=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_masked_tokens_do_not_reach_the_logits_and_others_do(name: str) -> None:
    prior = prior_of(name)
    tokens = prior.by_position(some_values(prior, 4))
    masked = lowest(torch.rand(4, 12), torch.tensor([3, 6, 9, 12]))
    logits = prior.logits(tokens, masked, LABELS)
    others = (tokens + 1) % GRID.codebook_size
    assert torch.equal(prior.logits(torch.where(masked[..., None], others, tokens), masked, LABELS), logits)
    changed = prior.logits(torch.where(masked[..., None], tokens, others), masked, LABELS)
    assert all(not torch.equal(a, b) for a, b in zip(changed[:3], logits[:3]))
    assert not torch.equal(prior.logits(tokens, masked, (LABELS + 1) % 3)[3], logits[3])


def test_levels_of_a_position_are_told_apart() -> None:
    prior = prior_of("maskgit depth 3")
    tokens = prior.by_position(some_values(prior, 4))
    none = torch.zeros(4, 12, dtype=torch.bool)
    difference = prior.logits(tokens, none, LABELS) - prior.logits(tokens.flip(-1), none, LABELS)
    assert difference.abs().max() > 0.1


@pytest.mark.parametrize("depth", [1, 3])
def test_bound_of_uniform_predictions_is_the_bits_of_a_code(depth: int) -> None:
    prior = fresh(Grid(height=3, width=5, codebook_size=7, depth=depth), label_smoothing=0.5)
    bits = prior.evaluate(some_values(prior, 3), None, Noise(0, range(3)))
    torch.testing.assert_close(bits, torch.full((3,), math.log2(7)))


def test_evaluation_has_no_label_smoothing() -> None:
    values = some_values(prior_of(), 4)
    plain, smoothed = (
        prior_of(label_smoothing=share).evaluate(values, LABELS, Noise(0, range(4))) for share in (0, 0.5)
    )
    assert torch.equal(plain, smoothed)


def test_bound_is_the_mean_code_length_over_all_orders_and_above_the_exact_one() -> None:
    grid = Grid(height=1, width=3, codebook_size=3, classes=3)
    prior = PRIORS.build(MaskGitConfig(width=8, layers=1, heads=2, dropout=0.0), grid).eval()
    assert isinstance(prior, MaskGit)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in prior.parameters():
            parameter.add_(torch.randn_like(parameter))
    values, labels = torch.tensor([[[2, 0, 1]]]), torch.tensor([1])
    lengths = []
    for order in permutations(range(3)):
        masked, bits = torch.ones(1, 3, dtype=torch.bool), 0.0
        for position in order:
            logits = prior.logits(values.view(1, 3, 1), masked, labels)[0, position, 0]
            bits -= logits.double().log_softmax(-1)[values[0, 0, position]].item() / math.log(2)
            masked[0, position] = False
        lengths.append(bits)
    mean, exact = sum(lengths) / 6, -math.log2(sum(2**-bits for bits in lengths) / 6)
    many = 1000
    found = prior.evaluate(values.expand(many, -1, -1), labels.expand(many), Noise(0, range(many)))
    error = found.std().item() / math.sqrt(many)
    assert found.mean().item() * 3 == pytest.approx(mean, abs=12 * error)
    assert exact < mean
    assert 12 * error < max(lengths) - min(lengths)  # so that another mean would be told apart


def test_masks_of_an_evaluation_are_spread_over_all_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    prior = fresh(Grid(height=4, width=4, codebook_size=3))
    recorder = Recorder(prior, monkeypatch)
    prior.evaluate(torch.zeros(200, 4, 4, dtype=torch.int64), None, Noise(0, range(200)))
    for index, counts in enumerate(recorder.counts):
        assert set(counts.tolist()) == {2 * index + 1, 2 * index + 2}
    assert recorder.counts.float().mean().item() == pytest.approx(8.5, abs=0.1)


# ---- sampling -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", NAMES)
def test_sampling_gives_back_what_an_oracle_knows(name: str, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prior = prior_of(name)
    target = some_values(prior, 4, seed=3)
    Recorder(prior, monkeypatch, target)
    for options in ({}, {"guidance": 2.0}, {"steps": 1}, {"temperature": 0.0}, {"top_k": 1}, {"top_p": 0.5}):
        assert torch.equal(sample(prior, order=order, **options), target)


@pytest.mark.parametrize("order", ORDERS)
def test_each_step_sees_the_tokens_of_the_steps_before_it(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prior = prior_of()
    recorder = Recorder(prior, monkeypatch)
    values = sample(prior, order=order, steps=5)
    assert recorder.counts[:, 0].tolist() == [12, 11, 9, 7, 3]
    for before, after in pairwise(recorder.masks):
        assert not (after & ~before).any()  # what is revealed stays
    for masked, tokens in zip(recorder.masks, recorder.tokens):
        assert torch.equal(tokens[~masked], prior.by_position(values)[~masked])


def test_one_step_draws_all_tokens_from_the_first_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    prior = prior_of()
    recorder = Recorder(prior, monkeypatch)
    values = sample(prior, steps=1, temperature=0.0)
    assert len(recorder.masks) == 1
    masked = torch.ones(4, 12, dtype=torch.bool)
    expected = prior.logits(torch.zeros(4, 12, 1, dtype=torch.int64), masked, LABELS).argmax(-1)
    assert torch.equal(prior.by_position(values), expected)


def test_as_many_steps_as_positions_reveal_one_each_and_more_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    prior = prior_of()
    recorder = Recorder(prior, monkeypatch)
    values = sample(prior, steps=12)
    assert recorder.counts[:, 0].tolist() == list(range(12, 0, -1))
    assert torch.equal(sample(prior, steps=500), values)


def test_halton_order_reveals_the_first_positions_of_the_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    prior = prior_of()
    recorder = Recorder(prior, monkeypatch)
    sample(prior, order="halton")
    for masked in recorder.masks:
        hidden = [position for position in range(12) if masked[0, position]]
        assert hidden == sorted(halton_order(3, 4)[12 - len(hidden) :])
        assert (masked == masked[0]).all()


def test_confidence_without_noise_reveals_the_likeliest_tokens_first(monkeypatch: pytest.MonkeyPatch) -> None:
    prior = prior_of(choice_temperature=0.0)
    recorder = Recorder(prior, monkeypatch)
    sample(prior, steps=2, temperature=0.0)
    first, second = recorder.masks
    logits = prior.logits(torch.zeros(4, 12, 1, dtype=torch.int64), first, LABELS)
    likeliest = logits.log_softmax(-1).max(-1).values.squeeze(-1)
    for row in range(4):
        assert likeliest[row][~second[row]].min() >= likeliest[row][second[row]].max()
    prior.config.choice_temperature = 1000.0
    sample(prior, steps=2, temperature=0.0)
    assert not torch.equal(recorder.masks[-1], second)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", NAMES)
def test_known_tokens_are_seen_from_the_first_step_and_kept(
    name: str, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prior = prior_of(name)
    recorder, full = Recorder(prior, monkeypatch), some_values(prior, 4, seed=5)
    hidden = lowest(torch.rand(4, 12, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 6, 12]))
    known = prior.by_position(full).masked_fill(hidden[..., None], -1).view_as(full)
    values = sample(prior, known, order=order, steps=4)
    assert torch.equal(values[known >= 0], full[known >= 0])
    assert values.min() >= 0
    assert values.max() < GRID.codebook_size
    assert torch.equal(recorder.masks[0], hidden)
    assert recorder.counts.T.tolist() == [[0, 0, 0, 0], [1, 0, 0, 0], [6, 5, 4, 2], [12, 11, 8, 4]]


def test_position_with_some_known_tokens_is_drawn_around_them(monkeypatch: pytest.MonkeyPatch) -> None:
    prior = prior_of("maskgit depth 3")
    recorder, known = Recorder(prior, monkeypatch), some_values(prior, 4, seed=5)
    known[..., 1] = -1
    values = sample(prior, known)
    assert recorder.masks[0].all()
    assert torch.equal(values[..., ::2], known[..., ::2])
    assert len(values[..., 1].unique()) > 1


def test_known_token_that_is_no_code_is_refused() -> None:
    known = torch.full((4, 3, 4), 11)
    with pytest.raises(ArcvqError, match="from 0 to 10"):
        sample(prior_of(), known)


@pytest.mark.parametrize("depth", [1, 3])
def test_every_code_and_nothing_else_is_drawn(depth: int) -> None:
    prior = fresh(Grid(height=9, width=9, codebook_size=5, depth=depth, classes=3))
    values = sample(prior, temperature=50.0)
    assert values.unique().tolist() == [0, 1, 2, 3, 4]
    frequencies = values.flatten().bincount() / values.numel()
    assert (frequencies - 0.2).abs().max() < 0.08


@pytest.mark.parametrize("name", NAMES)
def test_training_and_sampling_read_nothing_on_the_host(name: str) -> None:
    """A tensor on the device `meta` has no values: reading one is an error."""
    with torch.device("meta"):
        prior = PRIORS.build(MaskGitConfig(width=8, layers=1, heads=2), grid_of(name))
        assert isinstance(prior, MaskGit)
        values, labels = torch.zeros(2, *prior.grid.token_shape, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    assert prior(values, labels)["cross_entropy"].shape == ()
    for order in ORDERS:
        noise = Noise(0, [0, 1], "meta")
        options = SamplingOptions(order=order, guidance=2.0, top_k=3, top_p=0.9)
        assert prior.sample(labels, noise, options, batch=2).shape == values.shape


def test_tokens_drawn_in_parts_are_those_drawn_together(monkeypatch: pytest.MonkeyPatch) -> None:
    prior = prior_of("maskgit depth 3")
    together = sample(prior)
    monkeypatch.setattr("arcvq.priors.maskgit.DRAWN_TOGETHER", 30)
    assert torch.equal(sample(prior), together)


@pytest.mark.parametrize(
    "settings",
    [
        {"label_smoothing": 1.0},
        {"dropout": -0.1},
        {"steps": 0},
        {"choice_temperature": -1.0},
        {"choice_temperature": math.nan},
    ],
)
def test_setting_out_of_range_is_named(settings: dict[str, float]) -> None:
    with pytest.raises(ArcvqError, match=next(iter(settings))):
        MaskGitConfig(**settings)


@pytest.mark.parametrize(
    ("preset", "grid", "parameters"),
    [
        ("cifar10/maskgit", Grid(height=8, width=8, codebook_size=512, classes=10), 14.6e6),
        ("photos-128/maskgit", Grid(height=16, width=16, codebook_size=1024, classes=139), 26.5e6),
        ("photos-128/maskgit", Grid(height=16, width=16, codebook_size=1024, depth=4, classes=139), 29.6e6),
        ("imagenet/movq-maskgit", Grid(height=16, width=16, codebook_size=1024, depth=4, classes=1000), 177.3e6),
    ],
)
def test_presets_have_the_size_that_they_say(preset: str, grid: Grid, parameters: float) -> None:
    config = load_config(preset)
    assert isinstance(config, PriorRunConfig)
    with torch.device("meta"):
        prior = PRIORS.build(config.prior, grid)
        assert isinstance(prior, MaskGit)
        labels = torch.zeros(1, dtype=torch.int64)
        logits = prior.logits(
            torch.zeros(1, 256, grid.depth, dtype=torch.int64)[:, : grid.positions], labels[:, None] > 0, labels
        )
    assert logits.shape == (1, grid.positions, grid.depth, grid.codebook_size)
    assert sum(each.numel() for each in prior.parameters()) == pytest.approx(parameters, rel=0.01)
