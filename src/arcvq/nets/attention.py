"""Self-attention over the positions of a feature map."""

from __future__ import annotations

from torch import Tensor, nn

from arcvq.functional.attention import attend
from arcvq.functional.layout import memory_format_of
from arcvq.nets.convolutions import PointConv2d


class SelfAttention(nn.Module):
    """x + proj_out(attention(norm(x))) with one head, over the positions of (B, C, H, W); in the memory layout of x."""

    def __init__(self, channels: int, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.q = PointConv2d(channels, channels)
        self.k = PointConv2d(channels, channels)
        self.v = PointConv2d(channels, channels)
        self.proj_out = PointConv2d(channels, channels)

    def forward(self, x: Tensor, mask: Tensor | None = None, condition: Tensor | None = None) -> Tensor:
        """False in mask (B, H·W, H·W) means: this position (row) may not attend to that one. `condition`: for norms that take one."""
        normal = self.norm(x) if condition is None else self.norm(x, condition)
        q, k, v = (layer(normal).permute(0, 2, 3, 1).flatten(1, 2) for layer in (self.q, self.k, self.v))
        found = attend(q, k, v, mask).unflatten(1, x.shape[2:]).permute(0, 3, 1, 2)
        return x + self.proj_out(found.contiguous(memory_format=memory_format_of(x)))
