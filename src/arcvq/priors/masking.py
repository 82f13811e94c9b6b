"""Which positions of a token grid are masked: in training, in evaluation, and after each step of sampling."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor


def lowest(scores: Tensor, count: Tensor) -> Tensor:
    """Where the `count` (B,) lowest of each row of scores (B, L) are, bool (B, L). Equal scores: the first. Reads nothing on the host."""
    return scores.argsort(dim=1, stable=True).argsort(dim=1) < count[:, None]


def training_count(uniform: Tensor, positions: int) -> Tensor:
    """How many positions a training step masks, from uniform numbers r in [0, 1): cos(πr/2) of them, and at least one."""
    return (torch.cos(uniform * (math.pi / 2)) * positions).round().clamp(min=1).long()


def masked_after(step: int, steps: int, total: Tensor, masked: Tensor) -> Tensor:
    """How many of the positions stay masked after a step, counted from 0, int64 (B,).

    total   how many were masked at the beginning
    masked  how many are masked now; each step reveals at least one of them, and the last one all
    """
    if step + 1 == steps:
        return torch.zeros_like(masked)
    share = math.cos(math.pi / 2 * (step + 1) / steps)
    planned = (total.double() * share).floor().long().clamp(min=1)
    return torch.minimum(planned, masked - 1).clamp(min=0)


@cache
def halton_order(height: int, width: int) -> tuple[int, ...]:
    """The positions of a grid, in raster numbers, in the order in which the Halton sequence of bases 2 and 3 first meets them."""
    count = height * width
    while True:  # until the points have met every position
        index = torch.arange(1, count + 1)
        met = radical_inverse(index, 2, height) * width + radical_inverse(index, 3, width)
        order = tuple(dict.fromkeys(met.tolist()))
        if len(order) == height * width:
            return order
        count *= 2


def radical_inverse(index: Tensor, base: int, cells: int) -> Tensor:
    """Of [0, 1) cut into equal cells, the one in which each index's digits lie when they are read backwards behind the point. Exact."""
    inverse, scale, largest = torch.zeros_like(index), 1, int(index.max())
    while scale <= largest:
        inverse = inverse * base + index % base
        index, scale = index // base, scale * base
    return inverse * cells // scale
