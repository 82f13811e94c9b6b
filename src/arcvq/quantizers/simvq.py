"""SimVQ (Zhu et al., arXiv 2411.02038): codes are a frozen basis behind a learned linear layer, so every step moves every code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from arcvq.errors import ArcvqError
from arcvq.functional.precision import matmul, without_autocast
from arcvq.quantizers.init import Init
from arcvq.quantizers.vq import VQ, VQConfig

CODES_MOVE_TOGETHER = "one layer moves all codes together: leave out restart, and choose another init than kmeans"


@dataclass(kw_only=True)
class SimVQConfig(VQConfig):
    """VQ's options; `init` is that of the frozen basis. Codes cannot be moved one by one: no k-means init, no restart."""

    init: Init = "scaled-normal"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.init == "kmeans" or self.restart is not None:
            raise ArcvqError(CODES_MOVE_TOGETHER)


class SimVQ(VQ):
    """`SimVQ(dim=64, codebook_size=512)`. Options: see SimVQConfig.

    `codebook` is the projected basis, computed from the layer's weights on each access. Tokens, losses, ArcLoss and ball use it.
    The ball bound scales each code by its own factor, stored in `scale`; basis and layer do not change.
    """

    Config = SimVQConfig
    config: SimVQConfig
    basis: Tensor
    scale: Tensor

    def __init__(self, dim: int, codebook_size: int = 512, **options: Any) -> None:
        super().__init__(dim, codebook_size, **options)
        if self.config.ball is not None:
            self.register_buffer("scale", torch.ones(self.config.codebook_size, 1))

    def make_codebook(self) -> None:
        """Create the frozen basis and the layer that projects it."""
        self.register_buffer("basis", self.initial_codes())
        self.projection = nn.Linear(self.code_dim, self.code_dim)

    @property
    def codebook(self) -> Tensor:  # type: ignore[override]
        """The projected codes (K, code_dim), in full float32."""
        with without_autocast(self.basis):
            codes = matmul(self.basis, self.projection.weight.t()) + self.projection.bias
            return codes if self.config.ball is None else codes * self.scale

    def set_codes_(self, codes: Tensor) -> None:
        """Raise: single codes cannot be placed."""
        raise ArcvqError(CODES_MOVE_TOGETHER)

    def kmeans_init_(self, latents: Tensor, iterations: int = 10, seed: int = 0) -> None:
        """Raise: single codes cannot be placed."""
        raise ArcvqError(CODES_MOVE_TOGETHER)

    def bound_(self) -> None:
        """Scale the codes outside this step's ball onto its surface, by their factors in `scale`."""
        if self.config.ball is not None:
            self.samp.bound_(self.codebook, self.step, self.scale)
