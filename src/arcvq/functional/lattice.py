"""Fixed codes: the points of a grid of scalar levels, numbered in a mixed radix.

Finite scalar quantization (FSQ, Mentzer et al., 2023) rounds each channel to one of its levels; lookup-free quantization (LFQ, Yu et
al., 2023) takes each channel's sign, which is two levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import atanh, prod
from operator import mul

import torch
from torch import Tensor

# How far before tanh saturates the outermost levels are reached (FSQ, appendix A.1).
SLACK = 1e-3


def place_values(levels: Sequence[int]) -> list[int]:
    """The factor of each channel's digit in a token: 1 for the first channel, then the product of the levels before."""
    return list(accumulate(levels[:-1], mul, initial=1))


def lattice_digits(levels: Sequence[int]) -> Tensor:
    """The digits (0 … L−1 in each channel) of every token in order: (K, d) int64, K the product of the levels."""
    tokens = torch.arange(prod(levels)).unsqueeze(1)
    return torch.div(tokens, torch.tensor(place_values(levels)), rounding_mode="floor") % torch.tensor(levels)


def lattice_tokens(digits: Tensor, levels: Sequence[int]) -> Tensor:
    """digits (…, d) int64 → tokens (…): the inverse of `lattice_digits`."""
    # Channel by channel: a tensor of place values would have to be copied to the device.
    terms = [digit * value for digit, value in zip(digits.unbind(dim=-1), place_values(levels))]
    return torch.stack(terms).sum(dim=0)


def fsq_codes(levels: Sequence[int]) -> Tensor:
    """All codes of FSQ in the order of their tokens: (K, d) float32, each channel in [−1, 1] with 0 among its values."""
    half = torch.tensor([level // 2 for level in levels])
    return (lattice_digits(levels) - half) / half


def fsq_bound(latents: Tensor, levels: Sequence[int]) -> Tensor:
    """Squash latents (N, d) by tanh so that rounding gives the levels −⌊L/2⌋ … ⌈L/2⌉−1 of each channel.

    With an even number of levels the curve is shifted down by a half, and sideways so that it still passes through 0 (except
    with two levels, where it cannot).
    """
    columns = []
    for column, level in zip(latents.unbind(dim=-1), levels):
        half = (level - 1) * (1 - SLACK) / 2
        offset = 0.0 if level % 2 else 0.5
        shift = atanh(offset / half) if offset < half else 0.0
        columns.append(torch.tanh(column + shift) * half - offset)
    return torch.stack(columns, dim=-1)
