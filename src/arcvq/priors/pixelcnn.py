"""Gated convolutions that predict tokens one after another. After van den Oord et al., Conditional Image Generation with PixelCNN Decoders,
NeurIPS 2016."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from arcvq.errors import ArcvqError
from arcvq.nets.pixelcnn import GatedPixelCnn
from arcvq.nets.transformer import cache_like
from arcvq.priors.autoregressive import AutoregressivePrior, State
from arcvq.priors.prior import Grid, PriorConfig, require_depth_1


@dataclass(kw_only=True)
class PixelCnnConfig(PriorConfig):
    """width         channels of the two stacks
    layers        of both stacks; together they reach first_kernel // 2 + (layers − 1) · (kernel // 2) rows and columns
    first_kernel  side of the first layer's kernel, odd
    kernel        side of the others', odd
    head_width    channels between the last layer and the logits
    dropout       of what each layer adds to the horizontal stack
    """

    width: int = 64
    layers: int = 15
    first_kernel: int = 7
    kernel: int = 3
    head_width: int = 512
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_range(1, 2**13, "width", "head_width")
        self.check_range(1, 128, "layers")
        self.check_range(3, 63, "first_kernel", "kernel")
        for name in ("first_kernel", "kernel"):
            if getattr(self, name) % 2 == 0:
                raise ArcvqError(f"prior.{name} must be odd, got {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise ArcvqError(f"prior.dropout must be from 0 to below 1, got {self.dropout}")


class PixelCnn(AutoregressivePrior):
    """The class and the tokens above and to the left → logits of the next token. A step of sampling computes what is new: at the start of a
    row the vertical stack in that row, and at each position the horizontal stack there."""

    Config: ClassVar[type[PriorConfig]] = PixelCnnConfig
    config: PixelCnnConfig

    def __init__(self, grid: Grid, config: PixelCnnConfig) -> None:
        super().__init__(grid, config)
        require_depth_1(grid, "pixelcnn")
        self.tokens = nn.Embedding(grid.codebook_size, config.width)
        self.net = GatedPixelCnn(
            config.width,
            config.layers,
            grid.classes + 1,
            first_kernel=config.first_kernel,
            kernel=config.kernel,
            dropout=config.dropout,
        )
        last = nn.Conv2d(config.head_width, grid.codebook_size, 1)
        self.head = nn.Sequential(nn.Conv2d(config.width, config.head_width, 1), nn.ReLU(), last)
        nn.init.zeros_(last.weight)
        assert last.bias is not None
        nn.init.zeros_(last.bias)

    def logits(self, tokens: Tensor, labels: Tensor) -> Tensor:
        return self.head(self.features(tokens, labels)).flatten(2).transpose(1, 2)

    def features(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """What the network has found at each position, (B, width, h, w), from the tokens (B, h, w) before it."""
        return self.net(self.tokens(tokens).permute(0, 3, 1, 2), labels)

    @property
    def step_kinds(self) -> int:
        return 2

    def step_kind(self, index: int) -> int:
        """1 where a row begins."""
        return int(index % self.grid.width == 0)

    def begin(self, labels: Tensor) -> State:
        state = super().begin(labels)
        like = cache_like(self.tokens.weight)
        state.cache = self.net.make_cache(len(labels), self.grid.height, self.grid.width, like)
        return state

    def next_logits(self, state: State, position: Tensor, kind: int) -> Tensor:
        width = self.grid.width
        row, column = position // width, position % width
        if kind == 1:
            above = (position - width).clamp(min=0) + torch.arange(width, device=position.device)
            found = self.tokens(state.tokens[:, above]).transpose(1, 2)  # (B, width, w)
            self.net.begin_row(found * (row > 0), row, state.cache, state.labels)
        left = self.tokens(state.tokens[:, (position - 1).clamp(min=0)])[:, 0] * (column > 0)
        here = self.net.step(left, column, state.cache, state.labels)
        return self.head(here[:, :, None, None])[:, :, 0, 0]
