"""Schedules such as M(t) and γ(t), as functions of a tensor t without a host read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from arcvq.errors import ArcvqError

Kind = Literal["exponential", "constant", "linear", "cosine", "oscillating"]
TimeUnit = Literal["steps", "fraction"]


def exponential(t: Tensor, start: float, rate: float) -> Tensor:
    """start · exp(rate · t): the paper's M(t) with rate α (Eq. 5), its γ(t) with rate −λ."""
    return (start * torch.exp(rate * t)).clamp(max=torch.finfo(t.dtype).max)  # finite in a long run, too


def constant(t: Tensor, value: float) -> Tensor:
    """The same value at every t."""
    return torch.full_like(t, value)


def linear(t: Tensor, start: float, end: float, duration: float) -> Tensor:
    """A line from start to end over the duration, then constant."""
    return start + (end - start) * _progress(t, duration)


def cosine(t: Tensor, start: float, end: float, duration: float) -> Tensor:
    """Half a cosine from start to end over the duration, then constant."""
    return start + (end - start) * 0.5 * (1 - torch.cos(math.pi * _progress(t, duration)))


def oscillating(t: Tensor, start: float, end: float, period: float) -> Tensor:
    """A cosine that is `start` at t = 0, `end` half a period later, and so on."""
    return start + (end - start) * 0.5 * (1 - torch.cos(2 * math.pi * t / period))


def adaptive(measured: Tensor, peak: float, target: float) -> Tensor:
    """`peak` where the measured value is 0, falling in a line to 0 where it reaches the target."""
    return peak * (1 - measured / target).clamp(0, 1)


def _progress(t: Tensor, duration: float) -> Tensor:
    """The part of the duration that has passed, from 0 to 1."""
    return (t / duration).clamp(0, 1)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A value over training time. `rate` belongs to `exponential`; `end` and `duration` belong to the others."""

    kind: Kind = "constant"
    start: float = 1.0
    rate: float = 0.0
    end: float = 0.0
    duration: float | None = None
    time: TimeUnit = "steps"

    def at(self, step: Tensor, total_steps: int | None) -> Tensor:
        """The value after `step` optimizer steps, as a float32 tensor on the step's device."""
        t = step.to(torch.float32)
        if self.time == "fraction":
            t = t / _require_total_steps(total_steps, "time: fraction")
        if self.kind == "exponential":
            return exponential(t, self.start, self.rate)
        if self.kind == "constant":
            return constant(t, self.start)
        duration = self.duration
        if duration is None:
            duration = (
                1.0
                if self.time == "fraction"
                else float(_require_total_steps(total_steps, f"a {self.kind} schedule without a duration"))
            )
        curve = {"linear": linear, "cosine": cosine, "oscillating": oscillating}[self.kind]
        return curve(t, self.start, self.end, duration)

    def check(self, total_steps: int | None) -> None:
        """Raise if the schedule is not valid, so that construction fails and not a later step."""
        for name, value, known in (("kind", self.kind, Kind), ("time", self.time, TimeUnit)):
            if value not in get_args(known):
                raise ArcvqError(f"unknown schedule {name} {value!r}: expected one of {', '.join(get_args(known))}")
        if self.duration is not None and self.duration <= 0:
            raise ArcvqError(f"a schedule's duration must be positive, got {self.duration}")
        self.at(torch.zeros(()), total_steps)


@dataclass(frozen=True)
class NamedRun:
    """The steps of a run that the paper reports, and the rates that were tuned for it."""

    steps: int
    growth: float  # α
    decay: float  # λ


# Steps: batches an epoch × epochs, from the data sets' sizes and the paper's batch sizes.
NAMED_RUNS = {
    "mnist": NamedRun(steps=59 * 500, growth=3e-4, decay=5e-4),
    "cifar10": NamedRun(steps=49 * 500, growth=3e-4, decay=5e-4),
    "imagenet": NamedRun(steps=math.ceil(1_281_167 / 30) * 15, growth=1e-5, decay=1e-4),
}


def rate_to_match(run: str, which: Literal["growth", "decay"], total_steps: int | None) -> float:
    """The rate with which M or γ ends after `total_steps` at the value where it ended in the named run of the paper."""
    if run not in NAMED_RUNS:
        raise ArcvqError(f"unknown run {run!r} for a schedule to follow: expected one of {', '.join(NAMED_RUNS)}")
    named = NAMED_RUNS[run]
    rate: float = getattr(named, which)
    return rate * named.steps / _require_total_steps(total_steps, f"match_run: {run}")


def _require_total_steps(total_steps: int | None, what: str) -> int:
    """total_steps; an error that names what needs them if they are not known."""
    if total_steps is None or total_steps < 1:
        raise ArcvqError(f"{what} needs the planned number of optimizer steps: give total_steps")
    return total_steps
