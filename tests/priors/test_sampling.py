"""Draws from logits, and noise by seed and index."""

import pytest
import torch

from arcvq.errors import ArcvqError
from arcvq.priors import Noise, SamplingOptions
from arcvq.priors.sampling import LEAST_TEMPERATURE, draw, guide, probabilities

LOGITS = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))


def test_probabilities_are_the_softmax_without_options() -> None:
    torch.testing.assert_close(probabilities(LOGITS, SamplingOptions()).float(), LOGITS.exp())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"top_k": 2}, [0.625, 0.375, 0, 0]),
        ({"top_k": 9}, [0.5, 0.3, 0.15, 0.05]),
        ({"top_p": 0.5}, [1, 0, 0, 0]),
        ({"top_p": 0.51}, [0.625, 0.375, 0, 0]),
        ({"top_p": 0.01}, [1, 0, 0, 0]),
        ({"top_p": 1.0}, [0.5, 0.3, 0.15, 0.05]),
        ({"temperature": 0.0}, [1, 0, 0, 0]),
        ({"temperature": 0.5}, [0.25 / 0.365, 0.09 / 0.365, 0.0225 / 0.365, 0.0025 / 0.365]),
        ({"top_k": 3, "top_p": 0.6}, [0.625, 0.375, 0, 0]),
    ],
)
def test_options_change_the_probabilities(options: dict, expected: list[float]) -> None:
    shuffled = [2, 0, 3, 1]
    found = probabilities(LOGITS[shuffled], SamplingOptions(**options))
    torch.testing.assert_close(found.float(), torch.tensor(expected)[shuffled].float())


@pytest.mark.parametrize("temperature", [LEAST_TEMPERATURE, 1e300])
def test_any_temperature_that_is_taken_gives_probabilities(temperature: float) -> None:
    found = probabilities(1e4 * LOGITS, SamplingOptions(temperature=temperature))
    assert found.sum() == pytest.approx(1)


def test_draw_is_the_inverse_of_the_cumulative_distribution() -> None:
    probability = torch.tensor([0.0, 0.25, 0.0, 0.75, 0.0]).double()
    uniform = torch.tensor([0.0, 0.2499, 0.25, 0.9, 1 - 2**-24])
    assert draw(probability.expand(5, -1), uniform).tolist() == [1, 1, 3, 3, 3]


def test_draws_have_the_frequencies_of_the_probabilities() -> None:
    probability = LOGITS.exp().double().expand(20_000, -1)
    counts = draw(probability, Noise(0, [0]).uniform(20_000)[0]).bincount(minlength=4) / 20_000
    torch.testing.assert_close(counts, LOGITS.exp(), atol=0.015, rtol=0)


def test_guidance_extrapolates_from_the_unconditional_prediction() -> None:
    conditional, unconditional = torch.tensor([2.0, 0.0]), torch.tensor([1.0, 1.0])
    assert guide(conditional, unconditional, 3.0).tolist() == [4.0, -2.0]
    assert torch.equal(guide(conditional, unconditional, 1.0), conditional)
    assert torch.equal(guide(conditional, unconditional, 0.0), unconditional)


def test_noise_depends_on_seed_and_index_alone() -> None:
    alone, together = Noise(3, [5]), Noise(3, [4, 5])
    for _ in range(2):
        assert torch.equal(alone.normal(2, 3)[0], together.normal(2, 3)[1])
    rows = torch.cat([Noise(seed, range(50)).uniform(4) for seed in range(3)])
    assert len(rows.unique(dim=0)) == 150


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": 1e-320},
        {"guidance": float("nan")},
        {"guidance": float("inf")},
        {"guidance": 1e30},
        {"top_p": float("nan")},
        {"eta": float("nan")},
        {"top_k": 0},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"guidance": -0.1},
        {"steps": 0},
        {"order": "random"},
        {"eta": 2.0},
    ],
)
def test_option_out_of_range_is_refused(options: dict) -> None:
    with pytest.raises(ArcvqError, match=next(iter(options))):
        SamplingOptions(**options)


def test_negative_seed_is_refused() -> None:
    with pytest.raises(ArcvqError, match="negative"):
        Noise(-1, [0])
