"""What an evaluation records of a codebook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arcvq.quantizers import Quantizer
from arcvq.storage import write_tensors

QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


def save_codebook(folder: Path, step: int, quantizer: Quantizer, counts: Tensor | None) -> None:
    """Write step-*.safetensors: the codes and how many tokens chose each. Writes nothing without codes or counts."""
    if quantizer.codebook is not None and counts is not None:
        tensors = {"codebook": quantizer.codebook.float(), "counts": counts.to(torch.int64)}
        write_tensors(folder / f"step-{step:08d}.safetensors", tensors)


@torch.no_grad()
def codebook_state(quantizer: Quantizer) -> dict[str, Any]:
    """Numbers for an evaluation line: quantiles of the codes' norms, the ball's radius, the share of codes on its surface, and the
    weight of the ArcLoss, γ(t) after t steps."""
    if quantizer.codebook is None:
        return {}
    norms = torch.linalg.vector_norm(quantizer.codebook.float(), dim=1)
    quantiles = torch.quantile(norms, torch.tensor(QUANTILES, device=norms.device)).tolist()
    state: dict[str, Any] = {"norm_quantiles": quantiles, "clipped_share": None}
    samp = getattr(quantizer, "samp", None)
    radius, weight = (None, None) if samp is None else (samp.radius(quantizer.step), samp.weight(quantizer.step))
    if weight is not None:
        state["arc_weight"] = float(weight)
    if radius is not None:
        state["ball_radius"] = float(radius)
        # A bounded code sits on the sphere, up to rounding.
        state["clipped_share"] = float((norms >= radius * (1 - 1e-5)).float().mean())
    return state
