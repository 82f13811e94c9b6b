"""SAMP, the spherical angular-margin prior: a norm ball that grows with training, and the ArcLoss, for any codebook."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from arcvq import distributed
from arcvq.errors import ArcvqError
from arcvq.functional import (
    ArcStatistics,
    Backend,
    Schedule,
    arc_finish,
    arc_loss,
    arc_merge,
    arc_statistics,
    assign_and_arc_loss,
    ball_bound_,
    perplexity,
    rate_to_match,
)
from arcvq.functional.schedules import TimeUnit, adaptive


@dataclass(frozen=True, kw_only=True)
class Ball:
    """The norm bound M(t) (Eq. 5). Defaults are the paper's for small images: exp(3e-4 · t).

    schedule   exponential: start·exp(alpha·t); constant: start; linear, cosine: from start to end over the duration, then constant;
               oscillating: start at t = 0, end half a duration later, and back
    time       `steps`, or `fraction`: t runs from 0 to 1 over total_steps (alpha and duration are in the same unit)
    match_run  mnist, cifar10 or imagenet: alpha is derived so that the last M(T) equals that run's; overrides alpha and time
    """

    schedule: Literal["exponential", "constant", "linear", "cosine", "oscillating"] = "exponential"
    alpha: float = 3e-4
    start: float = 1.0
    end: float = 10.0
    duration: float | None = None
    time: TimeUnit = "steps"
    match_run: str | None = None

    def build_schedule(self, total_steps: int | None) -> Schedule:
        """The schedule of the radius."""
        rate, time = self.alpha, self.time
        if rate < 0:
            raise ArcvqError(f"ball: alpha must not be negative, got {rate}: the radius would shrink to nothing")
        _check_match_run("ball", self.match_run, self.schedule)
        if self.match_run is not None:
            rate, time = rate_to_match(self.match_run, "growth", total_steps), "steps"
        return Schedule(
            kind=self.schedule, start=self.start, rate=rate, end=self.end, duration=self.duration, time=time
        )


@dataclass(frozen=True, kw_only=True)
class Arc:
    """The ArcLoss and its weight γ(t). Defaults are the paper's for small images: s = 10, m = 0.1, top-3, γ(t) = exp(−5e-4 · t).

    schedule       exponential: weight·exp(−decay·t); constant: weight; linear, cosine, oscillating: between weight and end;
                   adaptive: weight·(1 − p/target), p the smoothed perplexity over K; 0 once p reaches target
    time, match_run  as for Ball; `match_run` derives decay so that the last γ(T) equals the named run's
    stop_gradient  Eq. 12: the codebook gets no gradient from the ArcLoss
    monotone       let the positives' logit keep falling where θ + m exceeds π, see `functional.margin_cosine`
    """

    scale: float = 10.0
    margin: float = 0.1
    top_k: int = 3
    weight: float = 1.0
    decay: float = 5e-4
    schedule: Literal["exponential", "constant", "linear", "cosine", "oscillating", "adaptive"] = "exponential"
    end: float = 0.0
    duration: float | None = None
    time: TimeUnit = "steps"
    match_run: str | None = None
    target: float = 0.8
    smoothing: float = 0.95
    stop_gradient: bool = True
    monotone: bool = False

    def build_schedule(self, total_steps: int | None) -> Schedule | None:
        """The schedule of the weight; None when it is adaptive."""
        _check_match_run("arc", self.match_run, self.schedule)
        if self.schedule == "adaptive":
            return None
        rate, time = self.decay, self.time
        if self.match_run is not None:
            rate, time = rate_to_match(self.match_run, "decay", total_steps), "steps"
        return Schedule(
            kind=self.schedule, start=self.weight, rate=-rate, end=self.end, duration=self.duration, time=time
        )


def _check_match_run(part: str, match_run: str | None, schedule: str) -> None:
    """Raise if match_run is given and the schedule is not exponential."""
    if match_run is not None and schedule != "exponential":
        raise ArcvqError(
            f"{part}: match_run derives the rate of an exponential schedule, and this one is {schedule}; leave it out"
        )


class Samp(nn.Module):
    """Ball bound and ArcLoss for a quantizer's codebook; either may be None.

    The quantizer counts the steps: methods take the step as a tensor, so nothing here reads the host.
    """

    perplexity_ema: Tensor

    def __init__(
        self,
        ball: Ball | None = None,
        arc: Arc | None = None,
        *,
        total_steps: int | None = None,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        self.ball, self.arc, self.total_steps, self.backend = ball, arc, total_steps, backend
        self._radius = ball.build_schedule(total_steps) if ball else None
        self._weight = arc.build_schedule(total_steps) if arc else None
        if ball and (ball.start <= 0 or (ball.schedule not in ("exponential", "constant") and ball.end <= 0)):
            raise ArcvqError(f"ball: the radius must stay positive, got start {ball.start} and end {ball.end}")
        if arc and (arc.weight < 0 or arc.end < 0):
            raise ArcvqError(f"arc: the weight must not be negative, got weight {arc.weight} and end {arc.end}")
        for schedule in (self._radius, self._weight):
            if schedule is not None:
                schedule.check(total_steps)
        if arc and (arc.scale <= 0 or arc.top_k < 1 or not 0 <= arc.margin <= math.pi):
            raise ArcvqError(
                f"arc: expected scale > 0, top_k >= 1 and 0 <= margin <= pi, got scale {arc.scale}, top_k {arc.top_k}, margin {arc.margin}"
            )
        if arc and arc.schedule == "adaptive":
            if not (0 < arc.target <= 1 and 0 <= arc.smoothing < 1):
                raise ArcvqError(
                    f"arc: expected 0 < target <= 1 and 0 <= smoothing < 1, got {arc.target} and {arc.smoothing}"
                )
            self.register_buffer("perplexity_ema", torch.zeros(()))

    def radius(self, step: Tensor) -> Tensor | None:
        """M(t), or None without a ball."""
        return None if self._radius is None else self._radius.at(step, self.total_steps)

    def weight(self, step: Tensor) -> Tensor | None:
        """γ(t), or None without an ArcLoss."""
        if self.arc is None:
            return None
        if self._weight is None:
            return adaptive(self.perplexity_ema, self.arc.weight, self.arc.target)
        return self._weight.at(step, self.total_steps)

    def loss(self, latents: Tensor, codebook: Tensor, valid: Tensor | None = None, synchronize: bool = False) -> Tensor:
        """The unweighted ArcLoss of latents (N, D). With `synchronize`, the latents of all processes count as one batch."""
        arc = self._arc_options(latents, synchronize)
        if not synchronize or distributed.world_size() == 1:
            return arc_loss(latents, codebook, **arc, valid=valid)
        margin, monotone = arc.pop("margin"), arc.pop("monotone")
        statistics = arc_statistics(latents, codebook, **arc, valid=valid)
        shards = [ArcStatistics(*parts) for parts in zip(*(distributed.gather(part) for part in statistics))]
        scale, backend = arc["scale"], arc["backend"]
        return arc_finish(arc_merge(shards, scale), scale=scale, margin=margin, monotone=monotone, backend=backend)

    def losses_and_stats(
        self,
        step: Tensor,
        latents: Tensor,
        codebook: Tensor,
        valid: Tensor | None = None,
        synchronize: bool = False,
        *,
        training: bool = True,
        loss: Tensor | None = None,
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The weighted ArcLoss (γ(t) · L_A of Eq. 13) and the stats, both by name. `loss` is L_A if it is already computed."""
        losses: dict[str, Tensor] = {}
        stats: dict[str, Tensor] = {}
        weight = self.weight(step) if training else None
        if weight is not None:
            arc = self.loss(latents, codebook, valid, synchronize) if loss is None else loss
            losses["arc"] = weight * arc
            stats.update(arc_loss=arc.detach(), arc_weight=weight)
        radius = self.radius(step)
        if radius is not None:
            stats["ball_radius"] = radius
        return losses, stats

    def assign_and_loss(self, latents: Tensor, codebook: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The tokens by cosine, and the unweighted ArcLoss of this process."""
        return assign_and_arc_loss(latents, codebook, **self._arc_options(latents, False), valid=valid)

    def _arc_options(self, latents: Tensor, synchronize: bool) -> dict[str, Any]:
        """Keyword arguments for `arc_loss`; an error if there is no ArcLoss or too few latents."""
        arc = self.arc
        if arc is None:
            raise ArcvqError("this Samp has no ArcLoss: give arc=Arc()")
        if (not synchronize or distributed.world_size() == 1) and arc.top_k > latents.shape[0]:
            raise ArcvqError(
                f"top_k is {arc.top_k} but the batch has only {latents.shape[0]} tokens: lower arc.top_k or enlarge the batch"
            )
        names = ("scale", "margin", "top_k", "stop_gradient", "monotone")
        return {"backend": self.backend, **{name: getattr(arc, name) for name in names}}

    @torch.no_grad()
    def bound_(self, codebook: Tensor, step: Tensor, *companions: Tensor) -> Tensor | None:
        """Scale the codes outside the ball onto its surface, and companions with them; return which they were."""
        radius = self.radius(step)
        return None if radius is None else ball_bound_(codebook, radius, *companions)

    @property
    def follows_perplexity(self) -> bool:
        """Whether the ArcLoss weight depends on the measured perplexity."""
        return self.arc is not None and self.arc.schedule == "adaptive"

    @torch.no_grad()
    def update_perplexity_(self, counts: Tensor) -> None:
        """Update the running perplexity of an adaptive weight by the last step's counts (K,); without tokens nothing changes."""
        if self.arc is not None and self.follows_perplexity:
            now = (perplexity(counts) / counts.shape[0]).to(self.perplexity_ema.dtype)
            self.perplexity_ema.lerp_(torch.where(counts.sum() > 0, now, self.perplexity_ema), 1 - self.arc.smoothing)

    def extra_repr(self) -> str:
        return f"ball={self.ball}, arc={self.arc}"
