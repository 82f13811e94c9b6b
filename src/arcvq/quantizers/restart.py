"""Restarts: unused codes move onto random latents."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from arcvq import distributed
from arcvq.errors import ArcvqError


@dataclass(frozen=True, kw_only=True)
class Restart:
    """A code whose running usage (its fraction of the tokens) falls below `threshold` / K moves onto a random latent of the step.

    The threshold is relative to uniform usage, 1/K, so it depends on neither the batch size nor K. With decay 0.99 a code that is
    never used moves after about 350 steps. The optimizer's moments of a moved code are kept.
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
    """Update the running usage (K,) with this step's counts (K,), move the unused codes, and return which they were.

    No host read. Counts are global, and all processes draw the same candidates, so all codebooks stay the same. A step without
    tokens changes nothing.
    """
    total = counts.sum()
    updated = usage_ema.lerp(counts.to(usage_ema.dtype) / total.clamp(min=1), 1 - restart.decay)
    usage_ema.copy_(torch.where(total > 0, updated, usage_ema))
    codes = codebook.shape[0]
    unused = usage_ema < restart.threshold / codes
    candidates = random_latents(latents, valid, codes).to(codebook.dtype)  # (K, D)
    codebook.copy_(torch.where(unused.unsqueeze(1), candidates, codebook))
    usage_ema.copy_(torch.where(unused, 1 / codes, usage_ema))
    return unused


@torch.no_grad()
def random_latents(latents: Tensor, valid: Tensor | None, count: int) -> Tensor:
    """`count` latents (count, D) drawn with replacement from those of all processes, the same on each; zeros without any."""
    rows = latents.shape[0]
    drawn = latents.new_zeros(count, latents.shape[1])
    if rows:
        drawn = latents[_random_rows(rows, count, valid, latents.device)]
    if distributed.world_size() == 1:
        return drawn
    # Each draw comes from a process with probability proportional to its number of valid latents.
    size = torch.full((), rows, device=latents.device) if valid is None else valid.sum()
    ends = distributed.gather(size.to(torch.float64)).cumsum(dim=0)  # (W,)
    positions = distributed.from_first_process(torch.rand(count, dtype=torch.float64, device=latents.device)) * ends[-1]
    process = torch.searchsorted(ends, positions, right=True).clamp(max=ends.shape[0] - 1)
    return distributed.gather(drawn)[process, torch.arange(count, device=latents.device)]


def _random_rows(rows: int, count: int, valid: Tensor | None, device: torch.device) -> Tensor:
    """`count` random indices of valid rows, with replacement. If no row is valid, the last index."""
    if valid is None:
        return torch.randint(rows, (count,), device=device)
    rank = valid.cumsum(dim=0)  # the n-th valid row is the first whose rank exceeds n
    chosen = (torch.rand(count, device=device, dtype=torch.float64) * rank[-1]).floor().to(rank.dtype)
    return torch.searchsorted(rank, chosen, right=True).clamp(max=rows - 1)
