"""The last part of the ArcLoss for CUDA: each code's loss and its gradient, from the statistics of arc_kernels.py."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from arcvq.functional.kernels.launches import cdiv, next_power_of_two

# Pulls are scaled so that the largest is this: well below float16's largest (65,504), to keep the small ones above its smallest.
LARGEST_PULL = 16384.0


@triton.jit
def base_two_exponent(exponent):
    """x·log2 e, so that e^x is 2 to this power: the hardware computes powers of 2. Kernels load and store natural logarithms."""
    return exponent * 1.4426950408889634


@dataclass(frozen=True)
class Margin:
    """The angular margin and how its gradient is bounded, see `margin_cosine`."""

    angle: float
    smallest_sine: float
    monotone: bool

    @property
    def kernel_arguments(self) -> tuple[float, float, float]:
        """cos m, sin m and the smallest sine."""
        return math.cos(self.angle), math.sin(self.angle), self.smallest_sine

    def max_slope(self, scale: float) -> float:
        """A bound on the slope of a code's loss, in a cosine or in the negatives."""
        return scale * max(1.0, math.cos(self.angle) + abs(math.sin(self.angle)) / self.smallest_sine)


class Pulls(NamedTuple):
    """The gradient of the loss in the cosines: how each code pulls its top tokens and pushes the others. Scaled to fit float16."""

    pulled_tokens: Tensor  # (k, K) int32, which tokens
    top_pulls: Tensor  # (k, K)
    pushes: Tensor  # (K,)

    @classmethod
    def empty(cls, codes: int, top_k: int, device: torch.device) -> Pulls:
        """Uninitialised tensors for a kernel to write."""
        return cls(
            torch.empty(top_k, codes, dtype=torch.int32, device=device),
            torch.empty(top_k, codes, dtype=torch.float32, device=device),
            torch.empty(codes, dtype=torch.float32, device=device),
        )


@triton.jit
def code_losses(top, token, negative, scale, cos_margin, sin_margin, smallest_sine, MONOTONE: tl.constexpr):
    """Each code's loss, softplus(negatives − log Σ exp(s·cos(θ + m))), and its slopes in the top cosines and in the negatives."""
    present = token >= 0
    c = tl.where(present, top, 0.0)
    sine = tl.sqrt_rn(tl.maximum(1 - c * c, 0.0))
    value = tl.minimum(tl.maximum(c, -1.0), 1.0) * cos_margin - sine * sin_margin
    slope = cos_margin + c * sin_margin / tl.maximum(sine, smallest_sine)
    if MONOTONE:
        beyond = c < -cos_margin
        value = tl.where(beyond, c + cos_margin - 1, value)
        slope = tl.where(beyond, 1.0, slope)
    logits = tl.where(present, scale * value, float("-inf"))
    peak = tl.max(logits, axis=1)
    seen = peak > float("-inf")
    peak = tl.where(seen, peak, 0.0)
    mass = tl.exp(logits - peak[:, None])
    total = tl.where(seen, tl.sum(mass, axis=1), 1.0)
    gap = tl.where(seen, negative, 0.0) - peak - tl.log(total)
    # softplus and its slope, without overflow; both are 0 for a code without any token.
    small = tl.exp(-tl.abs(gap))
    loss = tl.maximum(gap, 0.0) + tl.where(small < 1e-3, small - 0.5 * small * small, tl.log(1 + small))
    push = tl.where(seen, tl.where(gap >= 0, 1.0, small) / (1 + small), 0.0)
    return tl.where(seen, loss, 0.0), -scale * slope * mass * (push / total)[:, None], push


@triton.jit(do_not_specialize=["code_count"])
def _finish_kernel(
    top_cosines,
    top_tokens,
    negatives,
    losses,
    grad_top,
    grad_negatives,
    code_count,
    scale,
    cos_margin,
    sin_margin,
    smallest_sine,
    MONOTONE: tl.constexpr,
    TOP: tl.constexpr,
    SLOTS: tl.constexpr,
    CODES: tl.constexpr,
):
    """`code_losses` of one block of codes, loaded and stored."""
    rows = tl.program_id(0) * CODES + tl.arange(0, CODES)
    inside = rows < code_count
    slots = tl.arange(0, SLOTS)
    place = rows[:, None].to(tl.int64) * TOP + slots[None, :]
    held = inside[:, None] & (slots < TOP)[None, :]
    token = tl.load(top_tokens + place, mask=held, other=-1)
    top = tl.load(top_cosines + place, mask=held, other=0.0)
    negative = tl.load(negatives + rows, mask=inside, other=0.0)
    loss, slopes, push = code_losses(top, token, negative, scale, cos_margin, sin_margin, smallest_sine, MONOTONE)
    tl.store(losses + rows, loss, mask=inside)
    tl.store(grad_top + place, slopes, mask=held)
    tl.store(grad_negatives + rows, push, mask=inside)


def finish(
    top_cosines: Tensor, top_tokens: Tensor, negatives: Tensor, scale: float, margin: Margin
) -> tuple[Tensor, Tensor, Tensor]:
    """Each code's loss (K,), and its slopes in the top cosines (K, k) and in the negatives (K,)."""
    code_count, top_k = top_cosines.shape
    losses, grad_top, grad_negatives = (torch.empty_like(x) for x in (negatives, top_cosines, negatives))
    _finish_kernel[(cdiv(code_count, 128),)](
        top_cosines,
        top_tokens,
        negatives,
        losses,
        grad_top,
        grad_negatives,
        code_count,
        scale,
        *margin.kernel_arguments,
        MONOTONE=margin.monotone,
        TOP=top_k,
        SLOTS=next_power_of_two(top_k),
        CODES=128,
    )
    return losses, grad_top, grad_negatives
