"""Schedules such as M(t) and γ(t)."""

import math

import pytest
import torch

from arcvq import ArcvqError
from arcvq.functional import NAMED_RUNS, Schedule, rate_to_match
from arcvq.functional.schedules import adaptive


def value_at(schedule: Schedule, step: int, total_steps: int | None = None) -> float:
    result = schedule.at(torch.tensor(step), total_steps)
    assert result.dtype == torch.float32
    assert result.shape == ()
    return result.item()


@pytest.mark.parametrize(
    ("schedule", "start", "middle", "end", "after"),
    [
        (Schedule(kind="exponential", start=2.0, rate=0.01), 2.0, 2 * math.e, 2 * math.e**2, 2 * math.e**4),
        (Schedule(kind="exponential", start=1.0, rate=-0.01), 1.0, math.exp(-1), math.exp(-2), math.exp(-4)),
        (Schedule(kind="constant", start=3.0, end=9.0), 3.0, 3.0, 3.0, 3.0),
        (Schedule(kind="linear", start=1.0, end=5.0, duration=200), 1.0, 3.0, 5.0, 5.0),
        (Schedule(kind="cosine", start=1.0, end=5.0, duration=200), 1.0, 3.0, 5.0, 5.0),
        (Schedule(kind="oscillating", start=1.0, end=5.0, duration=200), 1.0, 5.0, 1.0, 1.0),
    ],
    ids=lambda part: f"{part.kind} {part.rate}" if isinstance(part, Schedule) else None,
)
def test_schedule_has_expected_values(
    schedule: Schedule, start: float, middle: float, end: float, after: float
) -> None:
    values = [value_at(schedule, step) for step in (0, 100, 200, 400)]
    assert values == pytest.approx([start, middle, end, after], rel=1e-5)
    assert values[0] == start


def test_cosine_schedule_starts_and_ends_slowly() -> None:
    curve = Schedule(kind="cosine", start=0.0, end=1.0, duration=100)
    assert value_at(curve, 25) == pytest.approx((1 - math.cos(math.pi / 4)) / 2, rel=1e-6)
    assert value_at(curve, 75) == pytest.approx((1 - math.cos(3 * math.pi / 4)) / 2, rel=1e-6)


@pytest.mark.parametrize("kind", ["linear", "cosine", "oscillating"])
def test_duration_defaults_to_total_steps(kind: str) -> None:
    implied = Schedule(kind=kind, start=1.0, end=5.0)
    explicit = Schedule(kind=kind, start=1.0, end=5.0, duration=80)
    for step in (0, 10, 40, 79, 80, 100):
        assert value_at(implied, step, 80) == value_at(explicit, step)


@pytest.mark.parametrize("kind", ["exponential", "linear", "cosine", "oscillating"])
def test_fraction_time_runs_from_zero_to_one_over_total_steps(kind: str) -> None:
    in_steps = Schedule(kind=kind, start=1.0, end=5.0, rate=2.0 / 64, duration=64)
    in_fractions = Schedule(kind=kind, start=1.0, end=5.0, rate=2.0, duration=1.0, time="fraction")
    without_duration = Schedule(kind=kind, start=1.0, end=5.0, rate=2.0, time="fraction")
    for step in (0, 16, 32, 64):
        expected = value_at(in_steps, step)
        assert value_at(in_fractions, step, 64) == pytest.approx(expected, rel=1e-6)
        assert value_at(without_duration, step, 64) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("run", NAMED_RUNS)
@pytest.mark.parametrize("total_steps", [100, 24_500, 1_000_000])
def test_rate_to_match_reaches_final_values_of_named_run(run: str, total_steps: int) -> None:
    named = NAMED_RUNS[run]
    growth, decay = rate_to_match(run, "growth", total_steps), rate_to_match(run, "decay", total_steps)
    radius = value_at(Schedule(kind="exponential", rate=growth), total_steps)
    weight = value_at(Schedule(kind="exponential", rate=-decay), total_steps)
    assert radius == pytest.approx(math.exp(named.growth * named.steps), rel=1e-4)
    assert weight == pytest.approx(math.exp(-named.decay * named.steps), rel=1e-4)


def test_named_runs_have_paper_values() -> None:
    ends = {name: round(math.exp(run.growth * run.steps)) for name, run in NAMED_RUNS.items()}
    assert ends == {"mnist": 6974, "cifar10": 1556, "imagenet": 605}
    halves = {name: round(math.log(2) / run.decay) for name, run in NAMED_RUNS.items()}
    assert halves == {"mnist": 1386, "cifar10": 1386, "imagenet": 6931}


def test_rate_to_match_keeps_rate_at_equal_length() -> None:
    assert rate_to_match("cifar10", "growth", 24_500) == pytest.approx(3e-4, rel=1e-12)


def test_adaptive_weight_falls_linearly_to_zero_at_target() -> None:
    levels = torch.tensor([0.0, 0.4, 0.8, 1.0])
    torch.testing.assert_close(adaptive(levels, 2.0, 0.8), torch.tensor([2.0, 1.0, 0.0, 0.0]))


@pytest.mark.parametrize(
    ("schedule", "total_steps", "message"),
    [
        (Schedule(kind="linear", duration=0), None, "duration must be positive, got 0"),
        (Schedule(kind="cosine", duration=-3), None, "duration must be positive, got -3"),
        (Schedule(kind="linear"), None, "a linear schedule without a duration needs the planned number"),
        (
            Schedule(time="fraction"),
            None,
            "time: fraction needs the planned number of optimizer steps: give total_steps",
        ),
        (Schedule(time="fraction"), 0, "give total_steps"),
        (Schedule(kind="exp"), 10, "unknown schedule kind 'exp': expected one of exponential, constant"),
        (Schedule(time="epochs"), 10, "unknown schedule time 'epochs': expected one of steps, fraction"),
    ],
)
def test_invalid_schedule_raises(schedule: Schedule, total_steps: int | None, message: str) -> None:
    with pytest.raises(ArcvqError) as raised:
        schedule.check(total_steps)
    assert message in str(raised.value)


def test_rate_to_match_raises_without_known_run_or_length() -> None:
    with pytest.raises(ArcvqError, match=r"'cifar'.*mnist"):
        rate_to_match("cifar", "growth", 100)
    with pytest.raises(ArcvqError, match="mnist needs"):
        rate_to_match("mnist", "growth", None)
