"""Finite scalar quantization (FSQ): each channel is squashed and rounded; the codebook is the grid of all roundings.

Mentzer et al., Finite Scalar Quantization: VQ-VAE Made Simple, 2023. The codes are fixed, and there is no loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from arcvq.errors import ArcvqError
from arcvq.functional import fsq_bound, fsq_codes, lattice_tokens, straight_through
from arcvq.functional.precision import compute_dtype, without_autocast
from arcvq.quantizers.base import Quantizer
from arcvq.quantizers.options import QuantizerConfig


@dataclass(kw_only=True)
class FSQConfig(QuantizerConfig):
    """Options of FSQ beyond those every quantizer has; code_dim is the number of levels.

    levels  the number of values of each channel; their product is codebook_size. By default a power of two becomes eights and a
            remainder: 512 is 8·8·8, 1024 is 8·8·8·2. The paper recommends at least 5 for each: [8, 5, 5, 5] makes 1000
    """

    levels: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.levels is None:
            self.levels = _default_levels(self.codebook_size)
        if not self.levels or min(self.levels) < 2:
            raise ArcvqError(f"levels: each channel needs at least 2, got {list(self.levels)}")
        if prod(self.levels) != self.codebook_size:
            raise ArcvqError(
                f"levels {list(self.levels)} make {prod(self.levels)} codes, but codebook_size is {self.codebook_size}: make them agree"
            )
        if self.code_dim not in (None, len(self.levels)):
            raise ArcvqError(
                f"code_dim must be the number of levels, {len(self.levels)}, got {self.code_dim}: leave it out"
            )
        self.code_dim = len(self.levels)


def _default_levels(size: int) -> tuple[int, ...]:
    """Levels of 8, and a last one of 2 or 4 if needed, whose product is `size`, a power of two."""
    bits = size.bit_length() - 1
    if size < 2 or size != 2**bits:
        raise ArcvqError(f"codebook_size {size} is not a power of two: give levels whose product it is")
    return (8,) * (bits // 3) + ((2 ** (bits % 3),) if bits % 3 else ())


class FSQ(Quantizer):
    """`FSQ(dim=64, codebook_size=512)`: 8·8·8 roundings after a linear layer to three channels. Options: see FSQConfig."""

    Config = FSQConfig
    config: FSQConfig
    codebook: Tensor

    def __init__(self, dim: int, codebook_size: int = 512, **options: Any) -> None:
        super().__init__(dim, codebook_size, **options)
        assert self.config.levels is not None
        self.levels = self.config.levels
        self.register_buffer("codebook", fsq_codes(self.levels), persistent=False)  # follows from levels

    def quantize(
        self, latents: Tensor, valid: Tensor | None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """Latents (N, code_dim), squashed and rounded → codes, tokens, no losses, stats."""
        with without_autocast(latents):
            bounded = fsq_bound(latents.to(compute_dtype(latents)), self.levels)  # (N, d)
        half = [level // 2 for level in self.levels]
        # A NaN (counted in stats["nonfinite"]) gets a valid token, too.
        whole = bounded.detach().nan_to_num().round().to(torch.int64)
        digits = [column + h for column, h in zip(whole.unbind(dim=1), half)]
        tokens = lattice_tokens(torch.stack(digits, dim=1), self.levels)
        scaled = torch.stack([column / h for column, h in zip(bounded.unbind(dim=1), half)], dim=1)
        return straight_through(self.lookup(tokens), scaled), tokens, {}, self.token_stats(tokens, valid)
