"""What every objective is called with, and what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor


class Objective(Protocol):
    """`objective(reconstruction, images)` → weighted terms by name, each a scalar over the global batch.

    reconstruction, images  (B, C, H, W); images in [-1, 1], the reconstruction not clamped
    extra                   what a decoder gives beside its images: the other channels of a likelihood
    stage                   of the training, counted from 0
    """

    def __call__(
        self, reconstruction: Tensor, images: Tensor, extra: Mapping[str, Tensor] = {}, stage: int = 0
    ) -> Mapping[str, Tensor]: ...
