"""LPIPS as a loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from arcvq.metrics.lpips import Lpips, check_size


class PerceptualLoss(nn.Module):
    """`PerceptualLoss(lpips_network("vgg"))(reconstruction, images)` → (B,), with a gradient to the reconstruction.

    Both are (B, C, H, W) in [-1, 1]; greyscale is repeated to RGB. The network is frozen and runs in the precision of the
    surrounding autocast; features are compared in float32. The images' own features keep no graph.
    """

    def __init__(self, network: Lpips) -> None:
        super().__init__()
        self.network = network.requires_grad_(False).eval().to(memory_format=torch.channels_last)

    def train(self, mode: bool = True) -> PerceptualLoss:
        """Stays in evaluation mode."""
        return self

    def forward(self, reconstruction: Tensor, images: Tensor) -> Tensor:
        check_size(self.network.name, images)
        with torch.no_grad():
            target = self.network.features(_prepare(images))
        return self.network.distance(self.network.features(_prepare(reconstruction)), target)


def _prepare(images: Tensor) -> Tensor:
    """(B, C, H, W) in [-1, 1] → (B, 3, H, W) in [0, 1], channels last."""
    return ((images + 1) / 2).expand(-1, 3, -1, -1).contiguous(memory_format=torch.channels_last)
