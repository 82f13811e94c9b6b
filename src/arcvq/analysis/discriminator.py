"""Symptoms of a discriminator that does not help its tokenizer, from the training log."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from arcvq.analysis.finding import Finding
from arcvq.analysis.history import RunHistory, Series
from arcvq.functional.adversarial import LARGEST_WEIGHT

# Not judged with fewer logged values since the discriminator joined. The end is the last quarter of them.
LEAST_POINTS = 8

# The discriminator wins if its loss ends below this share of what it is where it knows nothing, or if the logits of images and
# reconstructions end further apart than this (a hinge asks for 2) and by this factor more than in the quarter before.
WINNING_LOSS = 0.1
WINNING_GAP = 6.0
GROWING_GAP = 1.1

# The adversarial gradient has vanished if, with its weight, it ends below this share of what `adversarial.weight` asks for.
VANISHED_GRADIENT = 0.01

# dB below the PSNR before the discriminator joined: if it ends lower, it has not recovered.
PSNR_LOSS = 1.0


def joining_step(history: RunHistory) -> int | None:
    """The first logged step at which the discriminator learned; None for a run without one."""
    steps = history.train_series("discriminator").steps
    return int(steps[0]) if len(steps) else None


def find_winning_discriminator(history: RunHistory) -> Iterator[Finding]:
    """A warning if the discriminator tells all reconstructions from images."""
    loss, gap = history.train_series("discriminator"), logit_gap(history)
    if len(loss) < LEAST_POINTS:
        return
    options = _options(history)
    unknowing = 2 * math.log(2) if options.get("loss") == "logistic" else 1.0
    unknowing *= float(options.get("discriminator_weight", 1.0))
    end = _median_of_quarter(loss, 3)
    wins = end < WINNING_LOSS * unknowing
    evidence = f"the discriminator's loss ends at {end:.3g}; where it knows nothing, it is {unknowing:.3g}"
    if len(gap) >= LEAST_POINTS:
        before, after = _median_of_quarter(gap, 2), _median_of_quarter(gap, 3)
        wins = wins or (after > WINNING_GAP and after > GROWING_GAP * before)
        evidence += f". The logits of images and of reconstructions end {after:.3g} apart, after {before:.3g}"
    if wins:
        yield Finding("discriminator wins", "warning", evidence, steadier(history))


def find_vanished_gradient(history: RunHistory) -> Iterator[Finding]:
    """A warning if the adversarial term hardly reaches the decoder, or if its weight is as large as it can become."""
    options, joined = _options(history), joining_step(history)
    asked = float(options.get("weight", 1.0))
    names = ("adversarial_weight", "adversarial_gradient", "reconstruction_gradient")
    found = [history.train_series(name) for name in names]
    ramps = joined is not None and history.last_step < joined + int(options.get("ramp_steps", 0))
    if min(map(len, found)) < LEAST_POINTS or asked == 0 or ramps:
        return
    weight, adversarial, reconstruction = (_median_of_quarter(series, 3) for series in found)
    if reconstruction == 0:  # a stage that does not train the decoder
        return
    share = weight * adversarial / reconstruction / asked
    at_bound = bool(options.get("adaptive")) and weight >= 0.99 * asked * LARGEST_WEIGHT
    if share < VANISHED_GRADIENT or at_bound:
        yield Finding(
            "adversarial gradient vanished",
            "warning",
            f"at the decoder's last layer the adversarial gradient ends at {adversarial:.3g} and that of all other terms at "
            f"{reconstruction:.3g}, with a weight of {weight:.3g}{', its bound' if at_bound else ''}",
            steadier(history),
        )


def find_falling_psnr(history: RunHistory) -> Iterator[Finding]:
    """A warning if PSNR fell when the discriminator joined and stayed low, unless LPIPS improved meanwhile."""
    joined, psnr = joining_step(history), history.evaluation_series("psnr")
    if joined is None:
        return
    # What joined between two logged steps was on in an evaluation between them.
    alone = max((int(line["step"]) for line in history.train if line["step"] < joined), default=0)
    earlier = psnr.values[(psnr.steps > 0) & (psnr.steps <= alone)]
    later = psnr.values[psnr.steps > joined]
    if len(earlier) == 0 or len(later) == 0 or earlier[-1] - later[-1] <= PSNR_LOSS:
        return
    lpips = history.train_series("perceptual")
    before = Series(lpips.steps[lpips.steps <= alone], lpips.values[lpips.steps <= alone])
    after = Series(lpips.steps[lpips.steps > alone], lpips.values[lpips.steps > alone])
    evidence = f"PSNR was {earlier[-1]:.2f} dB before the discriminator joined (step {joined:,}) and ends at {later[-1]:.2f} dB"
    remedy = "lower adversarial.weight, unless LPIPS improved"
    if len(before) and len(after):
        lpips_before, lpips_after = _median_of_quarter(before, 3), _median_of_quarter(after, 3)
        if lpips_after < lpips_before:
            return  # the discriminator does its work
        evidence += f"; the LPIPS term went from {lpips_before:.3g} to {lpips_after:.3g}"
        remedy = "lower adversarial.weight"
    yield Finding("worse with the discriminator", "warning", evidence, remedy)


def logit_gap(history: RunHistory) -> Series:
    """How far the logits of images lie above those of reconstructions."""
    real, fake = history.train_series("real_logits"), history.train_series("fake_logits")
    steps, of_real, of_fake = np.intersect1d(real.steps, fake.steps, return_indices=True)
    return Series(steps, real.values[of_real] - fake.values[of_fake])


def steadier(history: RunHistory) -> str:
    """What gives the discriminator less of a lead, without what the run does already."""
    options = _options(history)
    advice = ["let the discriminator start later (adversarial.start)"]
    advice += [] if options.get("ramp_steps") else ["raise its weight slowly (adversarial.ramp_steps)"]
    advice += [] if options.get("lecam") else ["add adversarial.lecam: 0.001"]
    advice += [] if options.get("r1") else ["add adversarial.r1"]
    return f"{', '.join(advice)}, or give it a lower learning rate"


def _median_of_quarter(series: Series, quarter: int) -> float:
    """The median of a quarter of the values, counted from 0; of a very short series, of at least one."""
    count = len(series)
    first = min(quarter * count // 4, count - 1)
    return float(np.median(series.values[first : max(first + 1, (quarter + 1) * count // 4)]))


def _options(history: RunHistory) -> Mapping[str, Any]:
    """The run's adversarial settings, also those left at their defaults; empty for a run without a discriminator."""
    found = history.config.get("adversarial")
    return found if isinstance(found, Mapping) else {}
