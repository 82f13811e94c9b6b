"""The first losses of every system are what they were when they were recorded (see golden_curves.py for how)."""

import json
from pathlib import Path

import pytest
from golden_curves import GOLDEN, loss_curve
from run_records import SAMPLE_SYSTEMS

# Another machine or another version of torch adds up in another order: about 1e-7 of the loss at the first step, which
# eight steps of training magnify to some 1e-5. Each of the real changes below moves the curve by more than 5e-3.
TOLERANCE = 1e-3


def recorded() -> dict[str, list[float]]:
    losses: dict[str, list[float]] = json.loads(GOLDEN.read_text())["losses"]
    return losses


def distance(curve: list[float], other: list[float]) -> float:
    assert len(curve) == len(other) == 8
    # A log-likelihood passes through zero, where nothing is a small part of it.
    return max(abs(a - b) / max(abs(b), 0.3) for a, b in zip(curve, other))


def test_every_system_has_a_curve() -> None:
    assert sorted(recorded()) == SAMPLE_SYSTEMS


@pytest.mark.parametrize("name", SAMPLE_SYSTEMS)
def test_the_loss_follows_its_golden_curve(name: str, tmp_path: Path) -> None:
    assert distance(loss_curve(name, {}, tmp_path / "run"), recorded()[name]) < TOLERANCE


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("training.seed", 2),
        ("training.learning_rate", 0.0032),
        ("training.warmup_steps", 2),
        ("quantizer.commitment_weight", 0.3),
        ("quantizer.arc.margin", 0.12),
        ("quantizer.arc.top_k", 2),
        ("quantizer.ball.start", 0.5),
        ("quantizer.init", "uniform"),
        ("autoencoder.skip_activated", "false"),
        ("objective.normalise", "variance01"),
    ],
)
def test_a_real_change_leaves_the_golden_curve(key: str, value: object, tmp_path: Path) -> None:
    curve = loss_curve("arcvq-vae", {key: value}, tmp_path / "run")
    assert distance(curve, recorded()["arcvq-vae"]) > 5 * TOLERANCE
