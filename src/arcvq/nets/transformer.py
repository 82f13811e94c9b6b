"""Transformer blocks over a sequence, and a cache of keys and values for generating it step by step."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arcvq.errors import ArcvqError


class Cache:
    """Keys and values of every layer for a fixed number of positions: (layers, B, heads, length, width of a head).

    The tensors keep their addresses, so that a CUDA graph can write into them.
    """

    def __init__(self, layers: int, batch: int, heads: int, length: int, width: int, like: Tensor) -> None:
        self.keys = like.new_zeros(layers, batch, heads, length, width)
        self.values = torch.zeros_like(self.keys)

    def write(self, layer: int, position: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store (B, heads, 1, width) at a position, int64 (1,); returns all keys and values of the layer."""
        self.keys[layer].index_copy_(2, position, keys)
        self.values[layer].index_copy_(2, position, values)
        return self.keys[layer], self.values[layer]


class Attention(nn.Module):
    """Self-attention with several heads over (B, L, width)."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        check_heads(width, heads)
        self.heads, self.dropout = heads, dropout
        self.to_qkv = nn.Linear(width, 3 * width)
        self.to_out = nn.Linear(width, width)

    def forward(self, x: Tensor, causal: bool) -> Tensor:
        """Attend over the whole sequence; with `causal`, no position attends to a later one."""
        q, k, v = self._split(x)
        dropout = self.dropout if self.training else 0.0
        return self._merge(F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=causal))

    def step(self, x: Tensor, cache: Cache, layer: int, position: Tensor) -> Tensor:
        """The output at one position, x (B, 1, width); writes its keys and values to the cache, and attends to those up to it."""
        q, k, v = self._split(x)
        keys, values = cache.write(layer, position, k, v)
        seen = torch.arange(keys.shape[2], device=x.device) <= position  # (length,)
        return self._merge(F.scaled_dot_product_attention(q, keys, values, attn_mask=seen[None, None, None]))

    def _split(self, x: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values, each (B, heads, L, width of a head)."""
        batch, length, _ = x.shape
        return self.to_qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)

    def _merge(self, x: Tensor) -> Tensor:
        return self.to_out(x.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and two linear layers with GELU, each on a LayerNorm of its input and added to it."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, causal: bool) -> Tensor:
        x = x + self.drop(self.attention(self.norm1(x), causal))
        return x + self.drop(self._mlp(self.norm2(x)))

    def step(self, x: Tensor, cache: Cache, layer: int, position: Tensor) -> Tensor:
        """The block's output (B, 1, width) at one position; writes its keys and values to the cache."""
        x = x + self.attention.step(self.norm1(x), cache, layer, position)
        return x + self._mlp(self.norm2(x))

    def _mlp(self, x: Tensor) -> Tensor:
        return self.contract(F.gelu(self.expand(x)))


class Transformer(nn.Module):
    """Blocks one after the other and a last LayerNorm, over (B, L, width)."""

    def __init__(self, width: int, layers: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        blocks = [Block(width, heads, dropout) for _ in range(layers)]
        self.blocks, self.norm = nn.ModuleList(blocks), nn.LayerNorm(width)
        self.apply(init_weights)
        for block in blocks:  # what is added to the sum shrinks with the depth
            for weight in (block.attention.to_out.weight, block.contract.weight):
                nn.init.normal_(weight, std=0.02 / (2 * layers) ** 0.5)

    def forward(self, x: Tensor, causal: bool = False) -> Tensor:
        for block in self.blocks:
            x = block(x, causal)
        return self.norm(x)

    def make_cache(self, batch: int, length: int) -> Cache:
        """An empty cache for `batch` sequences of this length."""
        like = cache_like(self.norm.weight)
        return Cache(len(self.blocks), batch, self.heads, length, self.width // self.heads, like)

    def step(self, x: Tensor, cache: Cache, position: Tensor) -> Tensor:
        """What `forward` with `causal` gives at one position, x (B, 1, width), if the cache has seen the positions before it."""
        for layer, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            x = block.step(x, cache, layer, position)
        return self.norm(x)


def cache_like(weight: Tensor) -> Tensor:
    """A tensor of the dtype and on the device that a cache of what this weight computes has: under autocast that of autocast."""
    weight, kind = weight.detach(), weight.device.type
    if kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind):
        return weight.to(torch.get_autocast_dtype(kind))
    return weight


def init_weights(module: nn.Module) -> None:
    """Normal weights with a standard deviation of 0.02, and biases of 0."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def check_heads(width: int, heads: int) -> None:
    """Raise unless the heads divide the width."""
    if heads < 1 or width % heads:
        raise ArcvqError(f"prior.width must be a multiple of prior.heads, got {width} and {heads}")
