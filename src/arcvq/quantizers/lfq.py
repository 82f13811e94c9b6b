"""Lookup-free quantization (LFQ): a token is the signs of its channels; the codebook is the corners of a cube.

Yu et al., Language Model Beats Diffusion: Tokenizer is Key to Visual Generation (MAGVIT-v2), 2023. The codes are fixed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from arcvq import distributed
from arcvq.errors import ArcvqError
from arcvq.functional import (
    Backend,
    entropy_statistics,
    lattice_digits,
    lattice_tokens,
    sign_entropy_statistics,
    straight_through,
    vq_loss,
)
from arcvq.functional.chunks import check_backend
from arcvq.quantizers.base import Quantizer, apply_projection
from arcvq.quantizers.entropy import Entropy, entropy_term
from arcvq.quantizers.options import QuantizerConfig


@dataclass(kw_only=True)
class LFQConfig(QuantizerConfig):
    """Options of LFQ beyond those every quantizer has; codebook_size is a power of two, code_dim its number of bits.

    commitment_weight  on mean (sg q − z)²
    entropy            the entropy term, which keeps codes in use
    balanced           initialize the bits so that each is on for about half of the tokens (`balance_`): a bit that is equal for all
                       tokens has no gradient that would change it
    backend            of the entropy term: reference computes every token's score for every code, all others use halves of the signs
    """

    commitment_weight: float = 0.25
    entropy: Entropy | None = field(default_factory=Entropy)
    balanced: bool = False
    backend: Backend = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_backend(self.backend)
        bits = self.codebook_size.bit_length() - 1
        if bits < 1 or self.codebook_size != 2**bits:
            raise ArcvqError(
                f"codebook_size must be a power of two from 2 on, one bit a channel, got {self.codebook_size}"
            )
        if self.code_dim not in (None, bits):
            raise ArcvqError(f"code_dim must be the number of bits, {bits}, got {self.code_dim}: leave it out")
        self.code_dim = bits


class LFQ(Quantizer):
    """`LFQ(dim=64, codebook_size=512)`: the signs of nine channels, after a linear layer. Options: see LFQConfig."""

    Config = LFQConfig
    config: LFQConfig
    codebook: Tensor

    def __init__(self, dim: int, codebook_size: int = 512, **options: Any) -> None:
        super().__init__(dim, codebook_size, **options)
        self.levels = (2,) * self.code_dim
        corners = 2.0 * lattice_digits(self.levels) - 1
        self.register_buffer("codebook", corners, persistent=False)  # follows from codebook_size
        self.inits_from_latents = self.config.balanced
        if self.config.balanced and not isinstance(self.project_in, nn.Linear):
            raise ArcvqError(
                f"balanced needs a linear layer before the bits, and there is none: dim is {dim}, the number of bits; leave it out"
            )

    def init_from_latents_(self, latents: Tensor, seed: int = 0) -> None:
        self.balance_(latents)

    @torch.no_grad()
    def balance_(self, latents: Tensor) -> None:
        """Set the linear layer so that on these latents (in the layer's layout) each channel has mean 0 and deviation 1.

        Call it once before training. With several processes the first one's latents count.
        """
        assert isinstance(self.project_in, nn.Linear)
        rows = self._to_rows(latents)
        self._count_nonfinite(rows)
        values = apply_projection(self.project_in, rows).flatten(0, -2).float()
        if values.shape[0] < 2:
            raise ArcvqError(f"balance_ needs two positions or more, got {values.shape[0]}")
        mean, deviation = values.mean(dim=0), values.std(dim=0).clamp(min=1e-6)
        bias = (self.project_in.bias - mean) / deviation
        self.project_in.bias.copy_(distributed.from_first_process(bias))
        self.project_in.weight.copy_(distributed.from_first_process(self.project_in.weight / deviation.unsqueeze(1)))

    def quantize(
        self, latents: Tensor, valid: Tensor | None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """The signs of latents (N, code_dim) → codes, tokens, losses, stats."""
        config = self.config
        tokens = lattice_tokens((latents.detach() > 0).to(torch.int64), self.levels)
        codes = self.lookup(tokens)
        terms = vq_loss(latents, codes, commitment_weight=config.commitment_weight, valid=valid)
        losses = {"commitment": terms["commitment"]}
        if self.synchronizes:
            losses["commitment"] = losses["commitment"] * self.shard_weight(latents, valid)
        if config.entropy is not None and self.training:
            # −‖z − c‖² over corners c is 2z·c up to a constant: the published logit, at the same temperature.
            temperature = config.entropy.temperature
            if config.backend == "reference":
                sums = entropy_statistics(latents, self.codebook, temperature, "euclidean", "reference", valid)
            else:
                sums = sign_entropy_statistics(latents, temperature, valid)
            losses["entropy"] = entropy_term(self, config.entropy, sums, latents, valid)
        return straight_through(codes, latents), tokens, losses, self.token_stats(tokens, valid)
