"""CVQ (Zheng and Vedaldi, Online Clustered Codebook, ICCV 2023): little-used codes move towards latents, their anchors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from arcvq import distributed
from arcvq.errors import ArcvqError
from arcvq.functional import Metric, anchor_rate, contrastive_loss, gumbel, nearest_latents
from arcvq.quantizers.options import check_weights
from arcvq.quantizers.quantized import UpdateInputs
from arcvq.quantizers.restart import random_latents
from arcvq.quantizers.vq import VQ, VQConfig


@dataclass(frozen=True, kw_only=True)
class Contrastive:
    """A contrastive loss of each code's nearest tokens against the farthest half, times weight. Moves codes, not latents."""

    weight: float = 1.0
    temperature: float = 0.07

    def __post_init__(self) -> None:
        check_weights(weight=self.weight)
        if not self.temperature > 0:
            raise ArcvqError(f"contrastive: the temperature must be positive, got {self.temperature}")


@dataclass(kw_only=True)
class CVQConfig(VQConfig):
    """VQ's options, with cosine selection by default, and:

    anchor       where a little-used code moves: closest, the most similar latent; probrandom, a latent drawn from the softmax of
                 similarities; random, its row of a pool of K latents, which each step refills with random latents
    decay        of the running usage
    first_batch  move codes after the first step only
    contrastive  off unless given
    """

    metric: Metric = "cosine"
    anchor: Literal["closest", "random", "probrandom"] = "closest"
    decay: float = 0.99
    first_batch: bool = False
    contrastive: Contrastive | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.decay < 1:
            raise ArcvqError(f"expected 0 <= decay < 1, got {self.decay}")


class CVQ(VQ):
    """`CVQ(dim=64, codebook_size=512)`. Options: see CVQConfig.

    Anchors come from all micro-batches and all processes of a step. The optimizer's moments of a moved code are kept, as in the
    authors' code. The ball bound is applied after the move.
    """

    Config = CVQConfig
    config: CVQConfig
    moves_codes = True
    usage: Tensor
    pool: Tensor

    def __init__(self, dim: int, codebook_size: int = 512, **options: Any) -> None:
        super().__init__(dim, codebook_size, **options)
        codes = self.config.codebook_size
        self.register_buffer("usage", torch.zeros(codes))
        if self.config.anchor == "random":
            self.register_buffer("pool", torch.empty(codes, self.code_dim).uniform_(-1 / codes, 1 / codes))

    def code_losses(self, latents: Tensor, codes: Tensor, codebook: Tensor, valid: Tensor | None) -> dict[str, Tensor]:
        """VQ's terms, and in training the contrastive one."""
        losses = super().code_losses(latents, codes, codebook, valid)
        contrastive = self.config.contrastive
        if contrastive is not None and self.training:
            # The order of all tokens matters, so every process gets all of them, and computes the same gradient.
            rows, real = distributed.gather_rows(latents.detach(), valid) if self.synchronizes else (latents, valid)
            loss = contrastive_loss(rows, codebook, self.config.metric, contrastive.temperature, real)
            losses["contrastive"] = contrastive.weight * loss
        return losses

    def move_(self, inputs: UpdateInputs, counts: Tensor) -> None:
        """Move each code towards its anchor, the further the less it is used."""
        total = counts.sum()
        now = torch.where(total > 0, counts.to(self.usage.dtype) / total.clamp(min=1), self.usage)
        self.usage.lerp_(now, 1 - self.config.decay)
        rate = torch.where(total > 0, anchor_rate(self.usage, self.config.decay), 0.0)
        if self.config.first_batch:
            rate = torch.where(self.step > 1, 0.0, rate)
        self.codebook.lerp_(
            self._choose_anchors_(inputs, total).to(self.codebook.dtype), rate.unsqueeze(1).to(self.codebook.dtype)
        )

    def _choose_anchors_(self, inputs: UpdateInputs, total: Tensor) -> Tensor:
        """The vector that each code is moved towards (K, D), equal on all processes; the kind `random` also refills `pool`."""
        config = self.config
        if config.anchor == "random":
            codes = config.codebook_size
            fresh = random_latents(inputs.latents, inputs.valid, codes).to(self.pool.dtype)
            # With fewer tokens than rows only as many rows, chosen at random, are refilled.
            rank = distributed.from_first_process(torch.rand(codes, device=self.pool.device)).argsort().argsort()
            self.pool.copy_(torch.where((rank < total).unsqueeze(1), fresh, self.pool))
            return self.pool
        sample = config.anchor == "probrandom"
        found, score = nearest_latents(
            self.codebook, inputs.latents, inputs.valid, config.metric, config.backend, sample
        )
        scores = distributed.gather(score)  # (W, K)
        if sample and scores.shape[0] > 1:
            # The first process's noise picks the process, whether or not processes are seeded alike.
            scores = scores + distributed.from_first_process(gumbel(scores))
        best = scores.argmax(dim=0)  # (K,), a process for each code
        return distributed.gather(found)[best, torch.arange(found.shape[0], device=found.device)]
