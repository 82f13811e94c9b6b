"""Second lives for dead codes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from arcvq import distributed
from arcvq.errors import ArcvqError


@dataclass(frozen=True, kw_only=True)
class Restart:
    """A code whose running share of the tokens falls below `threshold` / K moves onto a random latent of the batch.

    Relative to the fair share 1/K, so neither the batch size nor K changes its meaning. With decay 0.99 a code that is never
    chosen is moved after about 350 steps. The optimizer's moments of a moved code are left as they are.
    """

    decay: float = 0.99
    threshold: float = 0.03

    def __post_init__(self) -> None:
        if not (0 <= self.decay < 1 and 0 < self.threshold < 1):
            raise ArcvqError(
                f"restart: expected 0 <= decay < 1 and 0 < threshold < 1, got {self.decay} and {self.threshold}"
            )


@torch.no_grad()
def restart_(
    codebook: Tensor, usage_ema: Tensor, counts: Tensor, latents: Tensor, valid: Tensor | None, restart: Restart
) -> Tensor:
    """Update the running usage (K,) with this step's counts (K,), move the dead codes, and say which they were.

    No host read. Counts are global, and all processes draw the same candidates, so all codebooks stay the same. A step without
    tokens says nothing of any code: the usage stays, and those that were dead have been moved before.
    """
    total = counts.sum()
    seen = usage_ema.lerp(counts.to(usage_ema.dtype) / total.clamp(min=1), 1 - restart.decay)
    usage_ema.copy_(torch.where(total > 0, seen, usage_ema))
    codes = codebook.shape[0]
    dead = usage_ema < restart.threshold / codes
    candidates = random_latents(latents, valid, codes).to(codebook.dtype)  # (K, D)
    codebook.copy_(torch.where(dead.unsqueeze(1), candidates, codebook))
    usage_ema.copy_(torch.where(dead, 1 / codes, usage_ema))
    return dead


@torch.no_grad()
def random_latents(latents: Tensor, valid: Tensor | None, count: int) -> Tensor:
    """`count` latents (count, D) drawn with replacement from all processes' (N, D), the same on each; zeros when there is none."""
    rows = latents.shape[0]
    drawn = latents.new_zeros(count, latents.shape[1])
    if rows:  # a process whose share of the batch is empty has nothing to offer
        drawn = latents[_random_rows(rows, count, valid, latents.device)]
    if distributed.world_size() == 1:
        return drawn
    offers = torch.full((), rows, device=latents.device) if valid is None else valid.sum()
    ends = distributed.gather(offers.to(torch.float64)).cumsum(dim=0)  # (W,)
    where = distributed.from_first_process(torch.rand(count, dtype=torch.float64, device=latents.device)) * ends[-1]
    process = torch.searchsorted(ends, where, right=True).clamp(max=ends.shape[0] - 1)
    return distributed.gather(drawn)[process, torch.arange(count, device=latents.device)]


def _random_rows(rows: int, count: int, valid: Tensor | None, device: torch.device) -> Tensor:
    """`count` row numbers, with replacement, among the valid ones (all padding: the last row)."""
    if valid is None:
        return torch.randint(rows, (count,), device=device)
    rank = valid.cumsum(dim=0)  # the n-th valid row is the first whose rank exceeds n
    chosen = (torch.rand(count, device=device, dtype=torch.float64) * rank[-1]).floor().to(rank.dtype)
    return torch.searchsorted(rank, chosen, right=True).clamp(max=rows - 1)
