"""Two transformers for several tokens per position, one over the positions and one over a position's tokens. After Lee et al.,
Autoregressive Image Generation using Residual Quantization, CVPR 2022."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

import torch
from torch import Tensor, nn

from arcvq.errors import ArcvqError
from arcvq.nets.transformer import Cache, Transformer, check_heads, init_weights
from arcvq.priors.autoregressive import AutoregressivePrior, State
from arcvq.priors.prior import Grid, PriorConfig

# CUDA's attention kernels take at most 65,535 sequences at once, and each position of each image is a sequence of its own.
MAX_SEQUENCES = 2**15
# Distances divided by a far smaller τ are infinite, and the loss is NaN.
LEAST_TEMPERATURE = 1e-6


@dataclass(kw_only=True)
class RqTransformerConfig(PriorConfig):
    """width, heads  of both transformers
    layers        of the transformer over positions
    depth_layers  of the transformer over a position's tokens
    dropout       in the blocks and on the embeddings
    soft_targets  τ: each step draws the tokens anew from softmax(−‖r − e_k‖² / τ) of residuals r and codes e_k, and these probabilities
                  are the targets. For residual tokenizers. None: the nearest codes
    """

    width: int = 512
    layers: int = 12
    depth_layers: int = 4
    heads: int = 8
    dropout: float = 0.1
    soft_targets: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_range(1, 2**13, "width")
        self.check_range(1, 128, "layers", "depth_layers", "heads")
        check_heads(self.width, self.heads)
        if not 0 <= self.dropout < 1:
            raise ArcvqError(f"prior.dropout must be from 0 to below 1, got {self.dropout}")
        if self.soft_targets is not None and not LEAST_TEMPERATURE <= self.soft_targets < math.inf:
            raise ArcvqError(
                f"prior.soft_targets must be finite and at least {LEAST_TEMPERATURE}, got {self.soft_targets}"
            )

    @property
    def soft_temperature(self) -> float | None:
        return self.soft_targets


@dataclass
class RqCache:
    """positions  keys and values of the positions so far
    depths     keys and values of the tokens of the present position
    """

    positions: Cache
    depths: Cache


class RqTransformer(AutoregressivePrior):
    """The positions so far → a context; the context and the position's tokens so far → logits of its next token.

    Tokens come in as learned embeddings, with a table of its own for each of a position's tokens: so they may stand for codes of one
    codebook or of several. (In the paper they are the codes themselves.) A position is the sum of its tokens' embeddings. All tokens share
    one head.
    """

    Config: ClassVar[type[PriorConfig]] = RqTransformerConfig
    config: RqTransformerConfig

    def __init__(self, grid: Grid, config: RqTransformerConfig) -> None:
        super().__init__(grid, config)
        self.classes = nn.Embedding(grid.classes + 1, config.width)
        self.tokens = nn.Embedding(grid.depth * grid.codebook_size, config.width)  # a position's first tokens, second …
        self.places = nn.Embedding(grid.positions, config.width)  # row 0: the class, row p: the position p − 1
        self.levels = nn.Embedding(grid.depth, config.width)
        self.drop = nn.Dropout(config.dropout)
        self.apply(init_weights)
        self.over_positions = Transformer(config.width, config.layers, config.heads, config.dropout)
        self.over_depths = Transformer(config.width, config.depth_layers, config.heads, config.dropout)
        self.head = nn.Linear(config.width, grid.codebook_size)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, values: Tensor, labels: Tensor | None = None, targets: Tensor | None = None) -> dict[str, Tensor]:
        """`targets` (B, h, w, depth, K): the probabilities that each token was drawn from, in place of the token itself."""
        if targets is None:
            return super().forward(values, labels)
        logits = self.logits(values, self.training_labels(labels, len(values)))
        log_p = logits.float().log_softmax(-1)
        return {"cross_entropy": -(targets.reshape_as(log_p) * log_p).sum(-1).mean()}

    def embed(self, tokens: Tensor) -> Tensor:
        """The embeddings (..., depth, width) of positions' tokens (..., depth)."""
        levels = torch.arange(self.grid.depth, device=tokens.device)
        return self.tokens(tokens + levels * self.grid.codebook_size)

    def logits(self, tokens: Tensor, labels: Tensor) -> Tensor:
        embedded = self.embed(tokens.reshape(len(tokens), self.grid.positions, self.grid.depth))  # (B, P, depth, width)
        *before, whole = accumulate(embedded.unbind(2))  # sums of a position's first tokens, and of all of them
        x = torch.cat([self.classes(labels)[:, None], whole[:, :-1]], dim=1) + self.places.weight
        context = self.over_positions(self.drop(x), causal=True)
        x = torch.stack([context, *before], dim=2) + self.levels.weight
        parts = self.drop(x).flatten(0, 1).split(MAX_SEQUENCES)
        found = torch.cat([self.over_depths(part, causal=True) for part in parts])
        return self.head(found).view(len(tokens), self.length, self.grid.codebook_size)

    def begin(self, labels: Tensor) -> State:
        state = super().begin(labels)
        state.cache = RqCache(
            self.over_positions.make_cache(len(labels), self.grid.positions),
            self.over_depths.make_cache(len(labels), self.grid.depth),
        )
        return state

    def compile_step(self) -> None:
        # Not `next_logits`: it would be compiled anew for every level.
        for transformer in (self.over_positions, self.over_depths):
            transformer.step = torch.compile(transformer.step, dynamic=False)  # type: ignore[method-assign]

    def next_logits(self, state: State, position: Tensor, kind: int) -> Tensor:
        tokens = state.tokens.unflatten(1, (self.grid.positions, self.grid.depth))
        place, depth = position // self.grid.depth, position % self.grid.depth
        if kind == 0:
            before = self.embed(tokens[:, (place - 1).clamp(min=0)]).sum(2)  # (B, 1, width)
            x = torch.where(place[:, None] == 0, self.classes(state.labels)[:, None], before) + self.places(place)
            x = self.over_positions.step(x, state.cache.positions, place)
        else:
            x = self.embed(tokens[:, place])[:, :, :kind].sum(2)
        # What the cache still has of the last position lies behind `depth`, where it is not seen.
        x = self.over_depths.step(x + self.levels(depth), state.cache.depths, depth)
        return self.head(x[:, 0])
