"""Unit vectors, and the operands of the nearest-code search by cosine or distance."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from arcvq.errors import ArcvqError

Metric = Literal["cosine", "euclidean"]
METRICS: tuple[Metric, ...] = ("cosine", "euclidean")

# A row with a smaller norm counts as zero.
MIN_NORM = 1e-12


def unit(x: Tensor) -> Tensor:
    """x / ‖x‖ for each row (Eq. 8). A zero row stays zero, and its gradient stays finite."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / torch.where(norm > MIN_NORM, norm, torch.ones_like(norm))


def check_metric(metric: str) -> None:
    """Raise unless this is a known metric."""
    if metric not in METRICS:
        raise ArcvqError(f"unknown metric {metric!r}: expected one of {', '.join(METRICS)}")


def search_operands(latents: Tensor, codebook: Tensor, metric: Metric) -> tuple[Tensor, Tensor, Tensor | None]:
    """(queries, keys, bias) with which argmax_j (q·k_j − bias_j) is the nearest code.

    cosine:    ẑ·ê_j
    euclidean: z·e_j − ½‖e_j‖², which orders codes as −‖z − e_j‖² does, without the cancellation of ‖z‖².
    """
    if metric == "cosine":
        return unit(latents), unit(codebook), None
    return latents, codebook, half_square(codebook)


def half_square(codebook: Tensor) -> Tensor:
    """½‖e_j‖² of each code: (K,)."""
    return 0.5 * codebook.square().sum(-1)
