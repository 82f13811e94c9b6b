"""How tokens are drawn from logits: guidance, temperature, top-k, top-p."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor

from arcvq.errors import ArcvqError

LEAST_TEMPERATURE = 1e-6
# Predictions that are moved away by more may no longer be finite.
MOST_GUIDANCE = 1e6


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """temperature  divides the logits; 0: the likeliest token
    top_k        only the k likeliest tokens, and those that are as likely as the last of them
    top_p        only the likeliest tokens that together have this probability
    guidance     w: what is predicted with the class moves away from what is predicted without it; 1: no guidance
    steps        of MaskGIT's and the diffusion's sampling; None: the prior's own number
    order        in which MaskGIT fills in tokens: confidence or halton; None: the prior's own
    eta          of DDIM: 0 draws no noise on the way, 1 as much as DDPM; None: the prior's own
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    guidance: float = 1.0
    steps: int | None = None
    order: Literal["confidence", "halton"] | None = None
    eta: float | None = None

    def __post_init__(self) -> None:
        # Logits that are divided by less are no longer finite.
        if self.temperature != 0 and not LEAST_TEMPERATURE <= self.temperature < math.inf:
            raise ArcvqError(
                f"temperature must be 0, or finite and at least {LEAST_TEMPERATURE}, got {self.temperature}"
            )
        if self.top_k is not None and self.top_k < 1:
            raise ArcvqError(f"top_k must be at least 1, got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ArcvqError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if not 0 <= self.guidance <= MOST_GUIDANCE:
            raise ArcvqError(f"guidance must be from 0 to {MOST_GUIDANCE}, got {self.guidance}")
        if self.steps is not None and self.steps < 1:
            raise ArcvqError(f"steps must be at least 1, got {self.steps}")
        if self.order not in (None, "confidence", "halton"):
            raise ArcvqError(f"order must be confidence or halton, got {self.order!r}")
        if self.eta is not None and not 0 <= self.eta <= 1:
            raise ArcvqError(f"eta must be from 0 to 1, got {self.eta}")

    def check_known(self, prior: str, known: Collection[str]) -> None:
        """Raise if an option is set that this prior does not have."""
        for name, value in self.given().items():
            if name not in known:
                raise ArcvqError(f"{prior} has no option {name} (got {value}): it has {', '.join(known)}")

    def given(self) -> dict[str, Any]:
        """The options that differ from their defaults."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {field.name: values[field.name] for field in fields(self) if values[field.name] != field.default}


def guide(conditional: Tensor, unconditional: Tensor, guidance: float) -> Tensor:
    """unconditional + guidance · (conditional − unconditional)."""
    return torch.lerp(unconditional, conditional, guidance)


def probabilities(logits: Tensor, options: SamplingOptions) -> Tensor:
    """Logits (..., K) → probabilities after temperature, top-k and top-p, float64. Reads nothing on the host."""
    logits = logits.double()
    if options.temperature == 0:
        return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    logits = logits / options.temperature
    if options.top_k is not None and options.top_k < logits.shape[-1]:
        lowest = logits.topk(options.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < lowest, -torch.inf)
    found = logits.softmax(-1)
    if options.top_p is not None and options.top_p < 1:
        ordered, order = found.sort(dim=-1, descending=True, stable=True)
        # A token stays if those before it have less than top_p; so the first always stays.
        kept = torch.zeros_like(found, dtype=torch.bool)
        kept.scatter_(-1, order, ordered.cumsum(-1) - ordered < options.top_p)
        found = found * kept
        found = found / found.sum(-1, keepdim=True)
    return found


def draw(probability: Tensor, uniform: Tensor) -> Tensor:
    """Tokens (...) from probabilities (..., K) and uniform numbers (...): the first whose cumulative probability exceeds the number.

    A token of probability 0 is never drawn.
    """
    cumulative = probability.cumsum(-1)
    total = cumulative[..., -1:]
    threshold = torch.minimum(uniform.double()[..., None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return (cumulative > threshold).int().argmax(-1)
