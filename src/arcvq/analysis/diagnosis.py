"""A small doctor for codebooks: which symptom, with which numbers, and what usually helps."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from arcvq.analysis.figures.training import LOSS_TERMS
from arcvq.analysis.history import RunHistory, is_number
from arcvq.analysis.snapshot import FloatArray, Snapshot

Severity = Literal["critical", "warning", "note"]

# A tenth of the codes idle is common; half of them idle is a codebook half its size.
DEAD_SHARE_WARNING = 0.10
DEAD_SHARE_CRITICAL = 0.50

# Fewer evaluation tokens than this per code, and an unused code may only have had no chance.
TOKENS_PER_CODE = 10

# Median norm of used codes over that of unused ones. Nearest-code search by distance turns such a gap into starvation.
NORM_RATIO = 2.0

# Two codes are near-duplicates when closer than this share of the used codes' median norm.
DUPLICATE_DISTANCE = 0.05
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
KMEANS: Way = ("restart", "start from k-means (quantizer.start)")  # whoever can restart codes can start them so
WIDER: Way = ("start", "start from a wider initialisation")
BOUND: Way = ("ball", "bound the norms (ball bound)")
UNIT: Way = (None, "normalise codes and latents")

# Rows of a distance matrix held at once.
ROWS_AT_ONCE = 2048


@dataclass(frozen=True)
class Finding:
    """One symptom: what was seen, in numbers, and a remedy in one line."""

    symptom: str
    severity: Severity
    evidence: str
    remedy: str


def diagnose(history: RunHistory) -> list[Finding]:
    """The symptoms of a run's last codebook and of its training; an empty list means none was found."""
    order = {"critical": 0, "warning": 1, "note": 2}
    checks = (_not_finite, _dead_codes, _few_tokens, _norm_imbalance, _near_duplicates, _stuck_perplexity, _ball_bound)
    return sorted((finding for check in checks for finding in check(history)), key=lambda found: order[found.severity])


def _not_finite(history: RunHistory) -> Iterator[Finding]:
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
    dead = snapshot.size - snapshot.used_count
    share = 1.0 - snapshot.usage
    if share > DEAD_SHARE_WARNING:
        yield Finding(
            "dead codes",
            "critical" if share > DEAD_SHARE_CRITICAL else "warning",
            f"{dead:,} of {snapshot.size:,} codes ({share:.0%}) receive no token of the evaluation set",
            _remedy(history, PRIOR, RESTART, REVIVAL, (None, "make the codebook smaller")),
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
        return  # a lattice's codes lie where they lie
    snapshot = history.last_snapshot
    used = snapshot.norms[snapshot.used & snapshot.finite]
    unused = snapshot.norms[~snapshot.used & snapshot.finite]
    if len(used) == 0 or len(unused) == 0:
        return
    longer, shorter = float(np.median(used)), float(np.median(unused))
    ratio = longer / shorter if shorter > 0 else math.inf
    bounded = len(history.train_series("ball_radius")) > 0
    if ratio > NORM_RATIO or ratio < 1 / NORM_RATIO:
        yield Finding(
            "norm imbalance",
            "warning",
            f"the median norm is {longer:.3g} for used codes and {shorter:.3g} for unused ones",
            ("lower the ball bound's growth rate alpha" if bounded else _remedy(history, BOUND, UNIT))
            + ", so that all codes compete at one length",
        )


def _near_duplicates(history: RunHistory) -> Iterator[Finding]:
    snapshot = history.last_snapshot
    duplicates = near_duplicates(snapshot)
    if duplicates > DUPLICATE_SHARE * snapshot.size:
        yield Finding(
            "near-duplicate codes",
            "warning",
            f"{duplicates:,} of {snapshot.size:,} codes ({duplicates / snapshot.size:.0%}) lie closer to another code than "
            f"{DUPLICATE_DISTANCE:.0%} of a used code's median norm",
            _remedy(history, PRIOR, WIDER, (None, "make the codebook smaller: duplicates carry no information")),
        )


def _stuck_perplexity(history: RunHistory) -> Iterator[Finding]:
    series = history.perplexity_series()
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
            _remedy(history, PRIOR, RESTART, KMEANS, REVIVAL, (None, "make the codebook smaller"))
            + "; more steps alone will not help",
        )


def _ball_bound(history: RunHistory) -> Iterator[Finding]:
    clipped = history.evaluation_series("clipped_share")
    trained = clipped.values[clipped.steps > 0]
    if len(trained) == 0:
        return
    if trained.max() == 0:
        yield Finding(
            "ball bound never binds",
            "note",
            f"no code was clipped at any of {len(trained)} evaluations",
            "the bound does nothing here: lower its growth rate alpha so that the radius stays within the codes' reach",
        )
        return
    second_half = clipped.values[clipped.steps > clipped.steps[-1] / 2]
    if second_half.min() >= ALWAYS_CLIPPED:
        yield Finding(
            "ball bound always binds",
            "note",
            f"at least {second_half.min():.0%} of the codes are clipped at every evaluation of the second half",
            "the codebook lives on a sphere: raise alpha if the codes should use their length too",
        )


def _remedy(history: RunHistory, *ways: Way) -> str:
    """Those that the run's quantizer can take and does not have already, joined in words."""
    options = _options(history)
    has_prior = len(history.train_series("arc")) > 0 and len(history.train_series("ball_radius")) > 0
    words = [
        text
        for option, text in ways
        if (option is None or option in options) and not (has_prior and (option, text) == PRIOR)
    ]
    return ", ".join(words[:-1]) + f"{',' * (len(words) > 2)} or " * (len(words) > 1) + words[-1]


def _options(history: RunHistory) -> Mapping[str, Any]:
    """Of the run's quantizer, whether set or not: a run's config.yaml has them all."""
    found = history.config.get("quantizer")
    return found if isinstance(found, Mapping) else {}


def near_duplicates(snapshot: Snapshot) -> int:
    """How many finite codes have another one closer than DUPLICATE_DISTANCE × the used codes' median norm."""
    codes = snapshot.codebook[snapshot.finite]
    reference = snapshot.norms[snapshot.used & snapshot.finite]
    if len(codes) < 2 or len(reference) == 0:
        return 0
    nearest = _nearest_squared(codes)
    return int((nearest < (DUPLICATE_DISTANCE * float(np.median(reference))) ** 2).sum())


def _nearest_squared(codes: FloatArray) -> FloatArray:
    """The squared distance from each code to its nearest other code, in row blocks to bound the memory."""
    squares = (codes**2).sum(axis=1)
    nearest = np.empty(len(codes))
    for start in range(0, len(codes), ROWS_AT_ONCE):
        block = slice(start, min(start + ROWS_AT_ONCE, len(codes)))
        squared = squares[block, None] + squares[None, :] - 2.0 * codes[block] @ codes.T
        own = np.arange(block.start, block.stop)
        squared[own - start, own] = np.inf
        nearest[block] = np.maximum(squared.min(axis=1), 0.0)
    return nearest
