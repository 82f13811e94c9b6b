"""Product quantization: the latent's channels are cut into groups, and each group has a codebook of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from arcvq.config import Choice
from arcvq.errors import ArcvqError
from arcvq.quantizers.codebooks import CODEBOOKS, MAX_CODEBOOKS, Nested, NestedConfig
from arcvq.quantizers.vq import VQConfig


@dataclass(kw_only=True)
class GroupedVQConfig(NestedConfig):
    """Options of GroupedVQ beyond those every quantizer has. codebook_size is that of each group.

    groups    how many parts a position's vector is cut into; each has its own token and its own codebook
    codebook  the kind of the codebooks, vq by default, and its options
    """

    groups: int = 2
    codebook: Annotated[VQConfig, Choice(CODEBOOKS, "vq")] = field(default_factory=VQConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.groups <= MAX_CODEBOOKS:
            raise ArcvqError(f"groups must be from 1 to {MAX_CODEBOOKS}, got {self.groups}")
        if self.heads not in (1, self.groups):
            raise ArcvqError(
                f"heads share one codebook and groups have one each: say groups alone, got heads {self.heads}"
            )
        self.heads = self.groups


class GroupedVQ(Nested):
    """`GroupedVQ(dim=64, codebook_size=512, groups=4)`. Options: see GroupedVQConfig.

    Tokens are (B, *spatial, groups), each in 0 … K−1 of its group's codebook. Losses are means over the groups.
    """

    Config = GroupedVQConfig
    config: GroupedVQConfig

    @property
    def codebooks(self) -> int:  # type: ignore[override]
        """One for each group."""
        return self.config.groups

    def quantize(
        self, latents: Tensor, valid: Tensor | None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """Latents (N, code_dim), groups taking turns → codes with their gradient path, tokens (N,), losses, stats."""
        groups = self.codebooks
        parts = [
            layer.quantize(latents[i::groups], None if valid is None else valid[i::groups])
            for i, layer in enumerate(self.vqs())
        ]
        codes, tokens, losses, stats = zip(*parts)
        joined = torch.stack(tokens, dim=1).reshape(-1)
        quantized = torch.stack(codes, dim=1).reshape(latents.shape)
        return quantized, joined, self.mean_terms(losses), self.mean_stats(stats, joined, valid)

    def lookup(self, tokens: Tensor) -> Tensor:
        """tokens (..., groups) in 0 … K−1 → codes (..., groups, code_dim)."""
        return torch.stack([layer.lookup(part) for layer, part in zip(self.vqs(), tokens.unbind(-1))], dim=-2)

    @torch.no_grad()
    def init_from_latents_(self, latents: Tensor, seed: int = 0) -> None:
        """Set each group's codes to the k-means centres of its part of the latents (in the layer's layout)."""
        rows = self.to_code_space(self._to_rows(latents))
        for i, layer in enumerate(self.vqs()):
            layer.kmeans_init_(rows[i :: self.codebooks], seed=seed)
