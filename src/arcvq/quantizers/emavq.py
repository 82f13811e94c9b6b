"""VQ whose codes are running means of their latents (van den Oord et al. 2017, appendix A.1), not trained by an optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from arcvq import distributed
from arcvq.errors import ArcvqError
from arcvq.functional import ema_update_, token_sums
from arcvq.quantizers.quantized import UpdateInputs
from arcvq.quantizers.restart import Restart
from arcvq.quantizers.vq import VQ, VQConfig


@dataclass(kw_only=True)
class EMAVQConfig(VQConfig):
    """VQ's options without a codebook term, and:

    decay        of the running counts and sums
    epsilon      of the Laplace smoothing of the counts
    init_count   how many tokens a code's initial value counts for; with 0 a code becomes the mean of its first tokens
    """

    codebook_weight: float = 0.0
    decay: float = 0.99
    epsilon: float = 1e-5
    init_count: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.codebook_weight or self.legacy:
            raise ArcvqError("codes that are running means have no codebook term: leave out codebook_weight and legacy")
        if self.arc is not None and not self.arc.stop_gradient:
            raise ArcvqError("codes that are running means take no gradient: arc.stop_gradient must stay true")
        if not (0 <= self.decay < 1 and self.epsilon >= 0 and self.init_count >= 0):
            raise ArcvqError(
                f"expected 0 <= decay < 1, epsilon >= 0 and init_count >= 0, got {self.decay}, {self.epsilon} and {self.init_count}"
            )


class EMAVQ(VQ):
    """`EMAVQ(dim=64, codebook_size=512)`. Options: see EMAVQConfig.

    Counts and sums cover the whole step: all micro-batches, all processes, no padding. The ball bound scales the sums with the
    codes, so that the next mean starts from the bounded code.
    """

    Config = EMAVQConfig
    config: EMAVQConfig
    moves_codes = True
    counts: Tensor
    sums: Tensor

    def __init__(self, dim: int, codebook_size: int = 512, **options: Any) -> None:
        super().__init__(dim, codebook_size, **options)
        self.register_buffer("counts", torch.full((self.config.codebook_size,), self.config.init_count))
        self.register_buffer("sums", self.codebook * self.config.init_count)

    def make_codebook(self) -> None:
        """Create `codebook`, here as a buffer."""
        self.register_buffer("codebook", self.initial_codes())

    def code_losses(self, latents: Tensor, codes: Tensor, codebook: Tensor, valid: Tensor | None) -> dict[str, Tensor]:
        """The commitment term alone."""
        return {"commitment": super().code_losses(latents, codes, codebook, valid)["commitment"]}

    def move_(self, inputs: UpdateInputs, counts: Tensor) -> None:
        """Update the running counts and sums, and set the codes to their means."""
        assert inputs.tokens is not None
        sums = distributed.sum_over_processes(token_sums(inputs.latents, inputs.tokens, self.config.codebook_size))
        ema_update_(self.codebook, self.counts, self.sums, counts, sums, self.config.decay, self.config.epsilon)

    def restart_(self, latents: Tensor, valid: Tensor | None, counts: Tensor, restart: Restart) -> Tensor:
        """Move unused codes onto random latents, and let each count as one token; return which they were, (K,) bool."""
        unused = super().restart_(latents, valid, counts, restart)
        self.counts.copy_(torch.where(unused, 1.0, self.counts))
        self.sums.copy_(torch.where(unused.unsqueeze(1), self.codebook, self.sums))
        return unused

    def bound_(self) -> None:
        """Scale the codes outside this step's ball onto its surface, and their running sums with them."""
        self.samp.bound_(self.codebook, self.step, self.sums)

    @torch.no_grad()
    def set_codes_(self, codes: Tensor) -> None:
        """Replace the codes, and let each count as much as an initial one."""
        super().set_codes_(codes)
        self.counts.fill_(self.config.init_count)
        self.sums.copy_(self.codebook * self.config.init_count)
