"""A transformer that predicts tokens one after another. After Esser et al., Taming Transformers, CVPR 2021; the random order after
Yu et al., Randomized Autoregressive Visual Generation, arXiv 2411.00776."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from arcvq.errors import ArcvqError
from arcvq.nets.transformer import Transformer, check_heads, init_weights
from arcvq.priors.autoregressive import AutoregressivePrior, State
from arcvq.priors.prior import Grid, PriorConfig, cross_entropy, require_depth_1


@dataclass(kw_only=True)
class GptConfig(PriorConfig):
    """width, layers, heads  of the transformer
    dropout        in the blocks and on the embeddings
    token_dropout  share of the input tokens that are replaced by random ones in training
    order          raster; or annealed: training begins with tokens in random order and ends in raster order
    anneal         for annealed: the shares of the training between which random orders become rarer
    total_steps    the length of the training, for annealed; filled in from the run
    """

    width: int = 512
    layers: int = 12
    heads: int = 8
    dropout: float = 0.1
    token_dropout: float = 0.0
    order: Literal["raster", "annealed"] = "raster"
    anneal: tuple[float, ...] = (0.5, 0.75)
    total_steps: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_range(1, 2**13, "width")
        self.check_range(1, 128, "layers", "heads")
        check_heads(self.width, self.heads)
        for name in ("dropout", "token_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ArcvqError(f"prior.{name} must be from 0 to below 1, got {getattr(self, name)}")
        if len(self.anneal) != 2 or not 0 <= self.anneal[0] < self.anneal[1] <= 1:
            raise ArcvqError(f"prior.anneal takes two rising shares of the training, got {list(self.anneal)}")


class Gpt(AutoregressivePrior):
    """The class and the tokens so far → logits of the next token. In random order, each input also says which place comes next."""

    Config: ClassVar[type[PriorConfig]] = GptConfig
    config: GptConfig

    def __init__(self, grid: Grid, config: GptConfig) -> None:
        super().__init__(grid, config)
        require_depth_1(grid, "gpt")
        self.classes = nn.Embedding(grid.classes + 1, config.width)
        self.tokens = nn.Embedding(grid.codebook_size, config.width)
        self.places = nn.Embedding(self.length + 1, config.width)  # row 0: the class, row p + 1: the token at place p
        self.next_places = nn.Embedding(self.length, config.width) if config.order == "annealed" else None
        self.drop = nn.Dropout(config.dropout)
        self.apply(init_weights)
        self.transformer = Transformer(config.width, config.layers, config.heads, config.dropout)
        self.head = nn.Linear(config.width, grid.codebook_size)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.step: Tensor

    def forward(self, values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        tokens, order = values.flatten(1), self.training_order(len(values))
        if order is not None:
            tokens = tokens.gather(1, order)
        inputs = tokens
        if self.config.token_dropout:
            replaced = torch.rand(tokens.shape, device=tokens.device) < self.config.token_dropout
            inputs = torch.where(replaced, torch.randint_like(tokens, self.grid.codebook_size), tokens)
        logits = self.ordered_logits(inputs, self.training_labels(labels, len(values)), order)
        return {"cross_entropy": cross_entropy(logits, tokens).mean()}

    def logits(self, tokens: Tensor, labels: Tensor) -> Tensor:
        return self.ordered_logits(tokens.flatten(1), labels, None)

    def ordered_logits(self, tokens: Tensor, labels: Tensor, order: Tensor | None) -> Tensor:
        """Logits (B, L, K) of tokens (B, L) that lie in this order: order (B, L) holds their places; None: raster order."""
        if order is None:
            order = torch.arange(self.length, device=tokens.device).expand_as(tokens)
        first = self.classes(labels)[:, None]
        x = torch.cat([first, self.tokens(tokens[:, :-1])], dim=1)
        x = x + self.places(torch.cat([torch.zeros_like(order[:, :1]), order[:, :-1] + 1], dim=1))
        if self.next_places is not None:
            x = x + self.next_places(order)
        return self.head(self.transformer(self.drop(x), causal=True))

    def training_order(self, batch: int) -> Tensor | None:
        """The places of the tokens in the order in which this step learns them, (B, L); None: raster order for all."""
        if self.config.order == "raster":
            return None
        raster = torch.arange(self.length, device=self.device).expand(batch, -1)
        shuffled = torch.rand(batch, self.length, device=self.device).argsort(1)
        chosen = torch.rand(batch, 1, device=self.device) < self.random_share()
        return torch.where(chosen, shuffled, raster)

    def random_share(self) -> Tensor:
        """The share of the images that are learned in random order at this step."""
        if self.config.total_steps is None:
            raise ArcvqError("prior.total_steps is needed for the annealed order: give the length of the training")
        first, last = self.config.anneal
        return 1 - ((self.step / self.config.total_steps - first) / (last - first)).clamp(0, 1)

    def after_step(self) -> None:
        self.step.add_(1)

    def begin(self, labels: Tensor) -> State:
        state = super().begin(labels)
        state.cache = self.transformer.make_cache(len(labels), self.length)
        return state

    def next_logits(self, state: State, position: Tensor, kind: int) -> Tensor:
        before = state.tokens[:, (position - 1).clamp(min=0)]  # (B, 1)
        x = torch.where(position[:, None] == 0, self.classes(state.labels)[:, None], self.tokens(before))
        x = x + self.places(position)
        if self.next_places is not None:
            x = x + self.next_places(position)
        return self.head(self.transformer.step(x, state.cache, position)[:, 0])
