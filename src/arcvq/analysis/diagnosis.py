"""Symptoms of a codebook and of its training, each with the numbers that show it and what usually helps."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from arcvq.analysis.figures.training import LOSS_TERMS
from arcvq.analysis.history import RunHistory, is_number
from arcvq.metrics.codebook import NEAR_DUPLICATE_DISTANCE

Severity = Literal["critical", "warning", "note"]

# A tenth of the codes idle is common; half of them idle is a codebook half its size.
DEAD_SHARE_WARNING = 0.10
DEAD_SHARE_CRITICAL = 0.50

# A plain codebook wakes up late: in results/cifar10, vq-vae uses 3 % of its codes after 1,225 steps and 34 % after 24,500.
EARLY_STEPS = 10_000

# Fewer evaluation tokens than this per code, and an unused code may only have had no chance.
TOKENS_PER_CODE = 10

# Median norm of used codes over that of unused ones. Nearest-code search by distance turns such a gap into starvation.
NORM_RATIO = 2.0

DUPLICATE_SHARE = 0.05

# Perplexity is stuck when it is below this share of K and gained less than this over the second half of training.
STUCK_LEVEL = 0.25
STUCK_GAIN = 0.05
STUCK_POINTS = 4
STUCK_STEPS = 200  # a shorter run has not had the time to move

# The bound always binds when at least this share of the codes is clipped at every evaluation of the second half.
ALWAYS_CLIPPED = 0.99

# What helps, and the option that the quantizer must have for it.
Way = tuple[str | None, str]
PRIOR: Way = ("arc", "add the ball bound and ArcLoss")
RESTART: Way = ("restart", "restart dead codes (quantizer.restart)")
REVIVAL: Way = ("revival", "revive dead codes sooner (quantizer.revival)")
KMEANS: Way = (
    "restart",
    "start from k-means (quantizer.start)",
)  # a quantizer that can restart codes has this option too
WIDER: Way = ("start", "start from a wider initialisation")
BOUND: Way = ("ball", "bound the norms (ball bound)")
UNIT: Way = (None, "normalise codes and latents")
SMALLER: Way = (None, "make the codebook smaller")


@dataclass(frozen=True)
class Finding:
    """One symptom: what was seen, in numbers, and a remedy in one line."""

    symptom: str
    severity: Severity
    evidence: str
    remedy: str


def diagnose(history: RunHistory) -> list[Finding]:
    """The symptoms of a run's last codebook and of its training; an empty list means none was found."""
    of_training = (_loss_not_finite,)
    of_codebook = (
        _codes_not_finite,
        _dead_codes,
        _few_tokens,
        _norm_imbalance,
        _near_duplicates,
        _stuck_perplexity,
        _ball_bound,
    )
    checks = (*of_training, *of_codebook) if history.has_codebook else of_training
    order = ("critical", "warning", "note")
    return sorted(
        (found for check in checks for found in check(history)), key=lambda found: order.index(found.severity)
    )


def is_young_and_plain(history: RunHistory) -> bool:
    """Whether the codebook has nothing but its gradient to move idle codes, and has not had long to do so."""
    options = _options(history)
    helped = any(options.get(name) for name in ("restart", "arc", "ball", "anchor"))
    return "restart" in options and not helped and history.last_step < EARLY_STEPS


def _loss_not_finite(history: RunHistory) -> Iterator[Finding]:
    # A logger may write a NaN total as null; the optional terms are null where a system has none, which is no symptom.
    steps = [
        line["step"]
        for line in history.train
        if any(is_number(line.get(term)) and not math.isfinite(line[term]) for term in LOSS_TERMS)
        or ("loss" in line and line["loss"] is None)
    ]
    if steps:
        yield Finding(
            "loss not finite",
            "critical",
            f"{len(steps):,} of {len(history.train):,} logged steps have a NaN or infinite loss, first at step {steps[0]:,}",
            "lower the learning rate, clip gradients, or train in float32; no later number of this run can be trusted",
        )


def _codes_not_finite(history: RunHistory) -> Iterator[Finding]:
    snapshot = history.last_snapshot
    broken = int((~snapshot.finite).sum())
    if broken:
        yield Finding(
            "codes not finite",
            "critical",
            f"{broken:,} of {snapshot.size:,} codes hold NaN or infinity at step {snapshot.step:,}",
            "go back to the last checkpoint before the loss diverged and lower the learning rate",
        )


def _dead_codes(history: RunHistory) -> Iterator[Finding]:
    snapshot = history.last_snapshot
    share = 1.0 - snapshot.usage
    if share <= DEAD_SHARE_WARNING:
        return
    yield Finding(
        "dead codes",
        "critical" if share > DEAD_SHARE_CRITICAL else "warning",
        f"{snapshot.size - snapshot.used_count:,} of {snapshot.size:,} codes ({share:.0%}) receive no token of the evaluation set",
        _remedy(history, PRIOR, RESTART, REVIVAL, SMALLER),
    )
    if is_young_and_plain(history):
        yield Finding(
            "short training",
            "note",
            f"this run has {history.last_step:,} steps, and a plain codebook wakes up late: on CIFAR-10 it uses a few "
            "percent of its codes after a thousand steps and about a third after 24,500",
            "train longer before you judge a plain codebook by this run",
        )


def _few_tokens(history: RunHistory) -> Iterator[Finding]:
    snapshot = history.last_snapshot
    if snapshot.token_count < TOKENS_PER_CODE * snapshot.size:
        yield Finding(
            "too few tokens to judge usage",
            "note",
            f"{snapshot.token_count:,} evaluation tokens for {snapshot.size:,} codes; "
            f"below {TOKENS_PER_CODE} per code a rare code looks dead",
            "evaluate on more images before calling codes dead",
        )


def _norm_imbalance(history: RunHistory) -> Iterator[Finding]:
    if "levels" in _options(history):
        return  # the codes of a lattice do not move
    snapshot = history.last_snapshot
    used = snapshot.norms[snapshot.used & snapshot.finite]
    unused = snapshot.norms[~snapshot.used & snapshot.finite]
    if len(used) == 0 or len(unused) == 0:
        return
    of_used, of_unused = float(np.median(used)), float(np.median(unused))
    low, high = sorted((of_used, of_unused))
    if high > NORM_RATIO * low:
        bounded = len(history.train_series("ball_radius")) > 0
        remedy = "lower the ball bound's growth rate alpha" if bounded else _remedy(history, BOUND, UNIT)
        yield Finding(
            "norm imbalance",
            "warning",
            f"the median norm is {of_used:.3g} for used codes and {of_unused:.3g} for unused ones",
            f"{remedy}, so that all codes compete at one length",
        )


def _near_duplicates(history: RunHistory) -> Iterator[Finding]:
    snapshot = history.last_snapshot
    share = snapshot.near_duplicates / snapshot.size
    if share > DUPLICATE_SHARE:
        yield Finding(
            "near-duplicate codes",
            "warning",
            f"{snapshot.near_duplicates:,} of {snapshot.size:,} codes ({share:.0%}) lie closer to another code than "
            f"{NEAR_DUPLICATE_DISTANCE:.0%} of the codes' mean norm",
            _remedy(history, PRIOR, WIDER, SMALLER),
        )


def _stuck_perplexity(history: RunHistory) -> Iterator[Finding]:
    series = history.evaluation_series("perplexity")
    size = history.last_snapshot.size
    if len(series) < STUCK_POINTS or history.last_step < STUCK_STEPS:
        return
    last = float(series.values[-1])
    halfway = float(np.interp(series.steps[-1] / 2, series.steps, series.values))
    if last < STUCK_LEVEL * size and last < (1 + STUCK_GAIN) * halfway:
        yield Finding(
            "perplexity stuck",
            "warning",
            f"perplexity is {last:.1f} of {size:,} and was {halfway:.1f} halfway through training",
            _remedy(history, PRIOR, RESTART, KMEANS, REVIVAL, SMALLER),
        )


def _ball_bound(history: RunHistory) -> Iterator[Finding]:
    clipped = history.evaluation_series("clipped_share")
    trained = clipped.values[clipped.steps > 0]
    if len(trained) == 0:
        return
    lowest = clipped.values[clipped.steps > clipped.steps[-1] / 2].min()
    if trained.max() == 0:
        yield Finding(
            "ball bound never binds",
            "note",
            f"no code was clipped at any of {len(trained)} evaluations",
            "the bound does nothing here: lower its growth rate alpha so that the radius stays within the codes' reach",
        )
    elif lowest >= ALWAYS_CLIPPED:
        yield Finding(
            "ball bound always binds",
            "note",
            f"at least {lowest:.0%} of the codes are clipped at every evaluation of the second half",
            "the codebook lives on a sphere: raise alpha if the codes should use their length too",
        )


def _remedy(history: RunHistory, *ways: Way) -> str:
    """The ways that the run's quantizer can take and does not have already, joined in words."""
    options = _options(history)
    has_prior = bool(len(history.train_series("arc")) and len(history.train_series("ball_radius")))
    *words, last = [
        text
        for option, text in ways
        if (option is None or option in options) and not (has_prior and (option, text) == PRIOR)
    ]
    return f"{', '.join(words)}{',' * (len(words) > 1)} or {last}" if words else last


def _options(history: RunHistory) -> Mapping[str, Any]:
    """The options of the run's quantizer, set or not: a run's config.yaml has them all."""
    found = history.config.get("quantizer")
    return found if isinstance(found, Mapping) else {}
