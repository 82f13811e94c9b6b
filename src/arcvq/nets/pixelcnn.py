"""Gated convolutions over a grid, in which a position sees only those before it in raster order. After van den Oord et al., Conditional
Image Generation with PixelCNN Decoders, NeurIPS 2016."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GatedLayer(nn.Module):
    """One layer of two stacks of feature maps (B, width, h, w).

    What the vertical stack has at a position comes from the rows above it; what the horizontal stack has comes from those, and from
    its own row to the left. The kernels have no weights for other positions, and the inputs are padded instead of centred: so there is
    nothing to mask, and no optimizer can bring a later position in. In the first layer the inputs are the positions' own values, which
    a kernel must not see either.
    """

    def __init__(self, width: int, classes: int, kernel: int, first: bool, dropout: float) -> None:
        super().__init__()
        self.first, radius = first, kernel // 2
        own = 0 if first else 1
        # Left, right, top, bottom. −1 drops the last row or column, which moves the others by one.
        self.above, self.beside = (radius, radius, radius, own - 1), (radius, own - 1, 0, 0)
        self.vertical = nn.Conv2d(width, 2 * width, (radius + own, kernel))
        self.horizontal = nn.Conv2d(width, 2 * width, (1, radius + own))
        self.across = nn.Conv2d(2 * width, 2 * width, 1)
        self.out = nn.Conv2d(width, width, 1)
        self.classes = nn.Embedding(classes, 2 * width)
        self.drop = nn.Dropout(dropout)

    def forward(self, vertical: Tensor, horizontal: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        condition = self.classes(labels)[:, :, None, None]
        above = self.vertical(F.pad(vertical, self.above))
        both = self.horizontal(F.pad(horizontal, self.beside)) + self.across(above)
        found = self.out(self.drop(gate(both + condition)))
        return gate(above + condition), found if self.first else horizontal + found


class GatedPixelCnn(nn.Module):
    """Layers of both stacks, from maps (B, width, h, w) and labels (B,) to maps of the same shape.

    A position sees all earlier ones that are at most `first_kernel // 2 + (layers − 1) · (kernel // 2)` rows and columns away.
    """

    def __init__(
        self, width: int, layers: int, classes: int, *, first_kernel: int, kernel: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        kernels = [first_kernel] + [kernel] * (layers - 1)
        self.layers = nn.ModuleList(
            GatedLayer(width, classes, size, index == 0, dropout) for index, size in enumerate(kernels)
        )
        self.apply(_init_weights)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        vertical = horizontal = x
        for layer in self.layers:
            vertical, horizontal = layer(vertical, horizontal, labels)
        return horizontal


def gate(x: Tensor) -> Tensor:
    """tanh of the first half of the channels, times the sigmoid of the other half."""
    value, opening = x.chunk(2, dim=1)
    return torch.tanh(value) * torch.sigmoid(opening)


def _init_weights(module: nn.Module) -> None:
    """Xavier-uniform convolution weights, biases of 0, and class embeddings with a standard deviation of 0.02."""
    if isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Conv2d):
        nn.init.xavier_uniform_(module.weight)
        assert module.bias is not None
        nn.init.zeros_(module.bias)
