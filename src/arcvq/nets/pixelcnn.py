"""Gated convolutions over a grid, in which a position sees only those before it in raster order. After van den Oord et al., Conditional
Image Generation with PixelCNN Decoders, NeurIPS 2016."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class RowCache:
    """What is kept of the positions so far, for all layers. All tensors keep their addresses.

    vertical    each layer's vertical input, (B, width, radius + h, w), below as many rows of zeros as it sees above
    across      what the vertical stack gives each layer's horizontal one in the current row, (B, 2 · width, w)
    horizontal  each layer's horizontal input in the current row, (B, width, radius + w), right of as many zeros
    """

    vertical: list[Tensor]
    across: list[Tensor]
    horizontal: list[Tensor]


class GatedLayer(nn.Module):
    """One layer of two stacks of feature maps (B, width, h, w).

    What the vertical stack has at a position comes from the rows above it; what the horizontal stack has comes from those, and from
    its own row to the left. The kernels have no weights for other positions, and the inputs are padded instead of centred: so there is
    nothing to mask, and no optimizer can bring a later position in. In the first layer the inputs are the positions' own values, which
    a kernel must not see either.
    """

    def __init__(self, width: int, classes: int, kernel: int, first: bool, dropout: float) -> None:
        super().__init__()
        self.first, self.radius = first, kernel // 2
        radius, own = self.radius, 0 if first else 1
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

    def row(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """One row of the vertical stack, from the rows (B, width, n, w) that its kernel sees: the row and what it gives the horizontal
        stack, (B, width, 1, w) and (B, 2 · width, 1, w)."""
        above = self.vertical(F.pad(rows, (self.radius, self.radius)))
        return gate(above + self.classes(labels)[:, :, None, None]), self.across(above)

    def position(self, window: Tensor, across: Tensor, labels: Tensor) -> Tensor:
        """One position of the horizontal stack, (B, width, 1): from the columns (B, width, n) that its kernel sees, the position's own
        last, and what the vertical stack gives here, (B, 2 · width, 1)."""
        both = self.horizontal(window[:, :, None])[:, :, 0] + across + self.classes(labels)[:, :, None]
        found = self.out(gate(both)[:, :, None])[:, :, 0]
        return found if self.first else window[:, :, -1:] + found


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

    def make_cache(self, batch: int, height: int, width: int, like: Tensor) -> RowCache:
        """A cache for a batch of grids of this size, of the dtype and on the device of `like`."""
        layers: list[GatedLayer] = list(self.layers)  # type: ignore[arg-type]
        channels = layers[0].out.in_channels
        return RowCache(
            [like.new_zeros(batch, channels, layer.radius + height, width) for layer in layers],
            [like.new_zeros(batch, 2 * channels, width) for _ in layers],
            [like.new_zeros(batch, channels, layer.radius + width) for layer in layers],
        )

    def begin_row(self, above: Tensor, row: Tensor, cache: RowCache, labels: Tensor) -> None:
        """Compute the vertical stack in a row, int64 (1,), from the input (B, width, w) of the row above it: zeros above the first."""
        layers: list[GatedLayer] = list(self.layers)  # type: ignore[arg-type]
        put(cache.vertical[0], above[:, :, None], row + layers[0].radius - 1)
        for index, layer in enumerate(layers):
            size = layer.vertical.kernel_size[0]
            found, across = layer.row(take(cache.vertical[index], row, size), labels)
            cache.across[index].copy_(across[:, :, 0])
            if index + 1 < len(layers):
                put(cache.vertical[index + 1], found, row + layers[index + 1].radius)

    def step(self, left: Tensor, column: Tensor, cache: RowCache, labels: Tensor) -> Tensor:
        """What `forward` gives at a column, int64 (1,), of the row that was begun: (B, width), from the input (B, width) of the position
        to the left of it: zeros left of the first."""
        layers: list[GatedLayer] = list(self.layers)  # type: ignore[arg-type]
        put(cache.horizontal[0], left[:, :, None], column + layers[0].radius - 1)
        for index, layer in enumerate(layers):
            window = take(cache.horizontal[index], column, layer.horizontal.kernel_size[1])
            found = layer.position(window, cache.across[index].index_select(2, column), labels)
            if index + 1 < len(layers):
                put(cache.horizontal[index + 1], found, column + layers[index + 1].radius)
        return found[:, :, 0]


def take(values: Tensor, first: Tensor, size: int) -> Tensor:
    """So many entries along the third axis from `first`, int64 (1,), on."""
    return values.index_select(2, first + torch.arange(size, device=first.device))


def put(values: Tensor, entry: Tensor, place: Tensor) -> None:
    """Write an entry of the third axis."""
    values.index_copy_(2, place, entry.to(values.dtype))


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
