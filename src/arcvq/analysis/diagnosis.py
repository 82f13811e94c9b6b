"""Finds symptoms of a bad codebook or training, each with its numbers and a remedy."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from arcvq.analysis.discriminator import find_falling_psnr, find_vanished_gradient, find_winning_discriminator
from arcvq.analysis.figures.training import LOSS_TERMS
from arcvq.analysis.finding import Finding
from arcvq.analysis.history import RunHistory, is_number
from arcvq.metrics.codebook import NEAR_DUPLICATE_DISTANCE

# Up to a tenth of the codes unused is common; with half of them unused, half of the codebook is wasted.
DEAD_SHARE_WARNING = 0.10
DEAD_SHARE_CRITICAL = 0.50

# The usage of a plain codebook rises late: in results/cifar10, vq-vae uses 3 % of its codes after 1,225 steps, 34 % after 24,500.
SHORT_STEPS = 10_000

# With fewer evaluation tokens per code than this, a rare code may look unused.
TOKENS_PER_CODE = 10

# Ratio of the median norms of used and unused codes, from which a search by distance hardly finds the unused ones.
NORM_RATIO = 2.0

DUPLICATE_SHARE = 0.05

# Perplexity is stuck if it is below this share of K and grew by less than this share over the second half of training.
STUCK_LEVEL = 0.25
STUCK_GAIN = 0.05
STUCK_POINTS = 4
STUCK_STEPS = 200  # not judged in a shorter run

# The bound always binds if at least this share of the codes is clipped at every evaluation of the second half.
ALWAYS_CLIPPED = 0.99

# The option that the quantizer must have, and the advice.
Remedy = tuple[str | None, str]
PRIOR: Remedy = ("arc", "add the ball bound and ArcLoss")
RESTART: Remedy = ("restart", "restart dead codes (quantizer.restart)")
REVIVAL: Remedy = ("revival", "revive dead codes sooner (quantizer.revival)")
KMEANS: Remedy = ("restart", "initialise with k-means (quantizer.init)")  # quantizers with `restart` support this
WIDER: Remedy = ("init", "initialise with a larger spread (quantizer.init)")
BOUND: Remedy = ("ball", "bound the norms (ball bound)")
NORMALISE: Remedy = (None, "normalise codes and latents")
SMALLER: Remedy = (None, "make the codebook smaller")


def diagnose(history: RunHistory) -> list[Finding]:
    """Symptoms of a run's training and of its last codebook, most severe first; empty if there are none."""
    training_checks = (
        _find_nonfinite_loss,
        find_winning_discriminator,
        find_vanished_gradient,
        find_falling_psnr,
    )
    codebook_checks = (
        _find_nonfinite_codes,
        _find_dead_codes,
        _find_few_tokens,
        _find_norm_imbalance,
        _find_near_duplicates,
        _find_stuck_perplexity,
        _find_ball_bound_problem,
    )
    checks = (*training_checks, *codebook_checks) if history.has_codebook else training_checks
    order = ("critical", "warning", "note")
    return sorted(
        (found for check in checks for found in check(history)), key=lambda found: order.index(found.severity)
    )


def is_short_plain_run(history: RunHistory) -> bool:
    """Whether the codes are trained by gradient alone, for fewer than SHORT_STEPS steps."""
    options = _quantizer_options(history)
    moves_unused_codes = any(options.get(name) for name in ("restart", "arc", "ball", "anchor"))
    return "restart" in options and not moves_unused_codes and history.last_step < SHORT_STEPS


def _find_nonfinite_loss(history: RunHistory) -> Iterator[Finding]:
    """Yield a finding if a loss term is NaN or infinite."""
    # A null total was NaN; a null term is one that the system does not have.
    steps = [
        line["step"]
        for line in history.train
        if any(is_number(line.get(term)) and not math.isfinite(line[term]) for term in LOSS_TERMS)
        or any(total in line and line[total] is None for total in ("loss", "tokenizer_loss"))
    ]
    if steps:
        yield Finding(
            "loss not finite",
            "critical",
            f"{len(steps):,} of {len(history.train):,} logged steps have a NaN or infinite loss, first at step {steps[0]:,}",
            "lower the learning rate, clip gradients, or train in float32; no later number of this run can be trusted",
        )


def _find_nonfinite_codes(history: RunHistory) -> Iterator[Finding]:
    """Yield a finding if codes hold NaN or infinite values."""
    snapshot = history.last_snapshot
    broken = int((~snapshot.finite).sum())
    if broken:
        yield Finding(
            "codes not finite",
            "critical",
            f"{broken:,} of {snapshot.size:,} codes hold NaN or infinity at step {snapshot.step:,}",
            "go back to the last checkpoint before the loss diverged and lower the learning rate",
        )


def _find_dead_codes(history: RunHistory) -> Iterator[Finding]:
    """Yield a finding if many codes have no token in the last evaluation."""
    snapshot = history.last_snapshot
    share = 1.0 - snapshot.usage
    if share <= DEAD_SHARE_WARNING:
        return
    yield Finding(
        "dead codes",
        "critical" if share > DEAD_SHARE_CRITICAL else "warning",
        f"{snapshot.size - snapshot.used_count:,} of {snapshot.size:,} codes ({share:.0%}) receive no token of the evaluation set",
        _advice(history, PRIOR, RESTART, REVIVAL, SMALLER),
    )
    if is_short_plain_run(history):
        yield Finding(
            "short training",
            "note",
            f"this run has {history.last_step:,} steps, and the usage of a plain codebook rises late: on CIFAR-10 it is a "
            "few percent after a thousand steps and about a third after 24,500",
            "train longer before you judge a plain codebook by this run",
        )


def _find_few_tokens(history: RunHistory) -> Iterator[Finding]:
    """A note if there are too few evaluation tokens per code to call a code unused."""
    snapshot = history.last_snapshot
    if snapshot.token_count < TOKENS_PER_CODE * snapshot.size:
        yield Finding(
            "too few tokens to judge usage",
            "note",
            f"{snapshot.token_count:,} evaluation tokens for {snapshot.size:,} codes; "
            f"below {TOKENS_PER_CODE} per code a rare code looks dead",
            "evaluate on more images before calling codes dead",
        )


def _find_norm_imbalance(history: RunHistory) -> Iterator[Finding]:
    """A warning if the norms of used and unused codes differ much."""
    if "levels" in _quantizer_options(history):
        return  # a fixed grid
    snapshot = history.last_snapshot
    used = snapshot.norms[snapshot.used & snapshot.finite]
    unused = snapshot.norms[~snapshot.used & snapshot.finite]
    if len(used) == 0 or len(unused) == 0:
        return
    used_median, unused_median = float(np.median(used)), float(np.median(unused))
    low, high = sorted((used_median, unused_median))
    if high > NORM_RATIO * low:
        bounded = len(history.train_series("ball_radius")) > 0
        remedy = "lower the ball bound's growth rate alpha" if bounded else _advice(history, BOUND, NORMALISE)
        yield Finding(
            "norm imbalance",
            "warning",
            f"the median norm is {used_median:.3g} for used codes and {unused_median:.3g} for unused ones",
            f"{remedy}, so that all codes have similar norms",
        )


def _find_near_duplicates(history: RunHistory) -> Iterator[Finding]:
    """Yield a finding if many codes are near duplicates of another."""
    snapshot = history.last_snapshot
    share = snapshot.near_duplicate_count / snapshot.size
    if share > DUPLICATE_SHARE:
        yield Finding(
            "near-duplicate codes",
            "warning",
            f"{snapshot.near_duplicate_count:,} of {snapshot.size:,} codes ({share:.0%}) lie closer to another code than "
            f"{NEAR_DUPLICATE_DISTANCE:.0%} of the codes' mean norm",
            _advice(history, PRIOR, WIDER, SMALLER),
        )


def _find_stuck_perplexity(history: RunHistory) -> Iterator[Finding]:
    """A warning if perplexity is low and hardly grew in the second half of training."""
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
            _advice(history, PRIOR, RESTART, KMEANS, REVIVAL, SMALLER),
        )


def _find_ball_bound_problem(history: RunHistory) -> Iterator[Finding]:
    """A note if the ball bound clips no code, or always nearly all of them."""
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
            "the bound has no effect: lower its growth rate alpha so that the radius stays close to the codes' norms",
        )
    elif lowest >= ALWAYS_CLIPPED:
        yield Finding(
            "ball bound always binds",
            "note",
            f"at least {lowest:.0%} of the codes are clipped at every evaluation of the second half",
            "all codes have the same norm: raise alpha if their norms should differ",
        )


def _advice(history: RunHistory, *remedies: Remedy) -> str:
    """Those of the remedies that the run's quantizer supports and does not use yet, as one phrase."""
    options = _quantizer_options(history)
    has_prior = bool(len(history.train_series("arc")) and len(history.train_series("ball_radius")))
    *words, last = [
        text
        for option, text in remedies
        if (option is None or option in options) and not (has_prior and (option, text) == PRIOR)
    ]
    return f"{', '.join(words)}{',' * (len(words) > 1)} or {last}" if words else last


def _quantizer_options(history: RunHistory) -> Mapping[str, Any]:
    """All options of the run's quantizer, also those left at their defaults."""
    found = history.config.get("quantizer")
    return found if isinstance(found, Mapping) else {}
