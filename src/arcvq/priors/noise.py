"""Random numbers of images by seed and index, so that an image does not depend on those that are made beside it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from arcvq.errors import ArcvqError


class Noise:
    """Draws for the images `indices` of a seed: row b of a draw depends on (seed, indices[b]) and the draws before it alone.

    The numbers are made on the CPU, so they are the same on every device.
    """

    def __init__(self, seed: int, indices: Sequence[int], device: torch.device | str = "cpu") -> None:
        if seed < 0 or any(index < 0 for index in indices):
            raise ArcvqError(f"the seed and the indices of images must not be negative, got seed {seed}")
        self.device = torch.device(device)
        self.generators = [_generator(seed, index) for index in indices]

    def uniform(self, *shape: int) -> Tensor:
        """Numbers in [0, 1), float32 (B, *shape)."""
        return self._stack([torch.rand(shape, generator=generator) for generator in self.generators])

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers, float32 (B, *shape)."""
        return self._stack([torch.randn(shape, generator=generator) for generator in self.generators])

    def _stack(self, rows: list[Tensor]) -> Tensor:
        return torch.stack(rows).to(self.device)


def _generator(seed: int, index: int) -> torch.Generator:
    """A generator for one image; nearby seeds and indices give unrelated numbers."""
    mixed = int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0])
    return torch.Generator().manual_seed(mixed >> 1)
