"""Initial codes."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from arcvq.functional import unit

Init = Literal["uniform", "unit-sphere", "normal", "scaled-normal", "kmeans"]


def initial_codes(init: Init, codebook_size: int, code_dim: int) -> Tensor:
    """Random initial codes (K, code_dim); for `kmeans` uniform ones, until `kmeans_init_` replaces them."""
    shape = (codebook_size, code_dim)
    if init == "unit-sphere":
        return unit(torch.empty(shape).uniform_(-1, 1))
    if init in ("normal", "scaled-normal"):
        return torch.randn(shape) * (1.0 if init == "normal" else code_dim**-0.5)
    return torch.empty(shape).uniform_(-1 / codebook_size, 1 / codebook_size)
