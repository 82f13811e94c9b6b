"""LPIPS as a loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from arcvq.metrics.lpips import Lpips, check_size


class PerceptualLoss(nn.Module):
    """`PerceptualLoss(lpips_network("vgg"))(reconstruction, images)` → (B,), with a gradient to the reconstruction.

    Both are (B, C, H, W) in [-1, 1]; greyscale is repeated to RGB. The network is frozen and runs in the precision of the
    surrounding autocast; features are compared in float32. The images' own features keep no graph. `weights` are those of the
    network's stages, all 1 by default.
    """

    def __init__(self, network: Lpips) -> None:
        super().__init__()
        self.network = network.requires_grad_(False).eval().to(memory_format=torch.channels_last)

    def train(self, mode: bool = True) -> PerceptualLoss:
        """Stays in evaluation mode."""
        return self

    def forward(self, reconstruction: Tensor, images: Tensor, weights: Sequence[float] | None = None) -> Tensor:
        check_size(self.network.name, images)
        with torch.no_grad():
            target = self.network.features(_prepare(images))
        features = self.network.features(_prepare(reconstruction))
        if weights is None:
            return self.network.distance(features, target)
        distances = self.network.stage_distances(features, target)
        return torch.stack([weight * each for weight, each in zip(weights, distances, strict=True)]).sum(dim=0)


def _prepare(images: Tensor) -> Tensor:
    """(B, C, H, W) in [-1, 1] → (B, 3, H, W) in [0, 1], channels last."""
    return ((images + 1) / 2).expand(-1, 3, -1, -1).contiguous(memory_format=torch.channels_last)
