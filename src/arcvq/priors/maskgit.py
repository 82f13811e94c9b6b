"""A transformer that predicts all masked tokens at once and is sampled in a few steps. After Chang et al., MaskGIT: Masked Generative
Image Transformer, CVPR 2022; the Halton order after Besnier et al., Halton Scheduler for Masked Generative Image Transformer, ICLR 2025."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from arcvq.errors import ArcvqError
from arcvq.nets.transformer import Transformer, check_heads, init_weights
from arcvq.priors.masking import halton_order, lowest, masked_after, training_count
from arcvq.priors.noise import Noise
from arcvq.priors.prior import Grid, Prior, PriorConfig, Progress, Sampler, cross_entropy
from arcvq.priors.sampling import SamplingOptions, draw, guide, probabilities

# Masks for each image of an evaluation.
EVALUATION_DRAWS = 8
# Probabilities that are in memory together when tokens are drawn.
DRAWN_TOGETHER = 2**25


@dataclass(kw_only=True)
class MaskGitConfig(PriorConfig):
    """width, layers, heads  of the transformer
    dropout             in the blocks and on the embeddings
    label_smoothing     of the training loss; the evaluation has none
    steps               of sampling
    order               in which sampling fills in tokens: confidence, those that the prior is sure of first; halton, spread evenly
    choice_temperature  for confidence: how random the choice of the surest is at the first step; it falls to 0 at the last
    """

    width: int = 512
    layers: int = 12
    heads: int = 8
    dropout: float = 0.1
    label_smoothing: float = 0.1
    steps: int = 12
    order: Literal["confidence", "halton"] = "confidence"
    choice_temperature: float = 4.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_range(1, 2**13, "width")
        self.check_range(1, 128, "layers", "heads")
        self.check_range(1, 2**16, "steps")
        check_heads(self.width, self.heads)
        for name in ("dropout", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise ArcvqError(f"prior.{name} must be from 0 to below 1, got {getattr(self, name)}")
        if not 0 <= self.choice_temperature < math.inf:
            raise ArcvqError(f"prior.choice_temperature must be finite and not negative, got {self.choice_temperature}")


class MaskGit(Prior):
    """The class and the tokens, some of them masked → logits of the masked ones.

    Several tokens of a position are masked together: their embeddings are added, and each level has logits of its own. The logits are
    those of codes only, so neither a mask nor a class can be drawn.

    The original's transformer has its norms after each part of a block, and the embeddings' weights in its last layer. Here the norms
    come before, which is easier to train, and the last layer has its own weights; training and sampling do not depend on either.
    """

    Config: ClassVar[type[PriorConfig]] = MaskGitConfig
    sampling_options: ClassVar[tuple[str, ...]] = ("temperature", "top_k", "top_p", "guidance", "steps", "order")
    # An upper bound, because the exact likelihood is a mean over all orders of the tokens.
    metric: ClassVar[str] = "bits_per_token_bound"
    config: MaskGitConfig

    def __init__(self, grid: Grid, config: MaskGitConfig) -> None:
        super().__init__(grid, config)
        self.classes = nn.Embedding(grid.classes + 1, config.width)
        codes = grid.depth * grid.codebook_size
        self.tokens = nn.Embedding(codes + 1, config.width)  # level after level; the last row: masked
        self.places = nn.Embedding(grid.positions + 1, config.width)  # row 0: the class
        self.drop = nn.Dropout(config.dropout)
        self.apply(init_weights)
        self.transformer = Transformer(config.width, config.layers, config.heads, config.dropout)
        self.head = nn.Linear(config.width, codes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """The cross-entropy of the masked tokens: their mean over the batch, so that an image counts by how many it has."""
        tokens, labels = self.by_position(values), self.training_labels(labels, len(values))
        count = training_count(torch.rand(len(tokens), device=tokens.device), self.grid.positions)
        masked = lowest(torch.rand(tokens.shape[:2], device=tokens.device), count)
        losses = cross_entropy(self.logits(tokens, masked, labels), tokens, self.config.label_smoothing).mean(-1)
        return {"cross_entropy": (losses * masked).sum() / masked.sum()}

    @torch.no_grad()
    def evaluate(self, values: Tensor, labels: Tensor | None, noise: Noise) -> Tensor:
        """An upper bound on the bits per token of each image, estimated from a few masks.

        If positions are revealed one by one in random order, the code length of an image is on average the sum over t = 1 … L of the mean
        cross-entropy of its masked positions while t of L are masked. The mean over orders is at least the length under the mean of
        their probabilities. The numbers t of the masks are spread evenly over 1 … L.
        """
        tokens, labels = self.by_position(values), self.all_labels(labels, len(values))
        offsets, total = noise.uniform(EVALUATION_DRAWS), torch.zeros(len(tokens), device=tokens.device)
        for index in range(EVALUATION_DRAWS):
            share = (index + offsets[:, index]) / EVALUATION_DRAWS
            count = (share * self.grid.positions).long().clamp(max=self.grid.positions - 1) + 1
            masked = lowest(noise.uniform(self.grid.positions), count)
            losses = cross_entropy(self.logits(tokens, masked, labels), tokens).mean(-1)
            total += (losses * masked).sum(1) / count
        return total / EVALUATION_DRAWS / math.log(2)

    def compile_step(self) -> None:
        self.logits = torch.compile(self.logits, dynamic=False)  # type: ignore[method-assign]

    def make_sampler(self, options: SamplingOptions, batch: int) -> Sampler:
        options.check_known(type(self).__name__, self.sampling_options)
        return partial(self.draw, options, batch)

    @torch.no_grad()
    def draw(
        self,
        options: SamplingOptions,
        batch: int,
        labels: Tensor | None,
        noise: Noise,
        known: Tensor | None = None,
        progress: Progress | None = None,
    ) -> Tensor:
        """Token grids (batch, h, w[, depth]). Known tokens are kept, and a position whose tokens are all known is never masked.

        Each step draws all masked tokens and masks again those that come last in the order. Nothing is read on the host between steps.
        """
        self.check_known(known)
        labels = self.all_labels(labels, batch)
        if known is None:
            known = torch.full((batch, *self.grid.token_shape), -1)
        given = self.by_position(known.to(labels.device))
        tokens, masked = given.clamp(min=0), (given < 0).any(-1)
        total = masked.sum(1)
        steps = min(options.steps or self.config.steps, self.grid.positions)  # each reveals at least one
        order = self.halton_scores() if (options.order or self.config.order) == "halton" else None
        for step in range(steps):
            logits = self.guided_logits(tokens, masked, labels, options.guidance)
            drawable = masked[..., None] & (given < 0)
            uniform = noise.uniform(self.grid.positions, self.grid.depth)
            tokens, log_probability = draw_tokens(logits, uniform, tokens, drawable, options)
            if order is not None:
                scores = order.expand(batch, -1)
            else:
                temperature = self.config.choice_temperature * (1 - (step + 1) / steps)
                scores = log_probability.sum(-1) + temperature * gumbel(noise.uniform(self.grid.positions))
            left = masked_after(step, steps, total, masked.sum(1))
            masked = lowest(scores.masked_fill(~masked, torch.inf), left)
            if progress:
                progress(step + 1, steps)
        return tokens.reshape(batch, *self.grid.token_shape)

    def logits(self, tokens: Tensor, masked: Tensor, labels: Tensor) -> Tensor:
        """The logits of all tokens (B, L, depth) given those that are not masked, bool (B, L): (B, L, depth, K)."""
        levels = self.grid.codebook_size * torch.arange(self.grid.depth, device=tokens.device)
        x = torch.where(masked[..., None], self.tokens.weight[-1], self.tokens(tokens + levels).sum(2))
        x = torch.cat([self.classes(labels)[:, None], x], dim=1) + self.places.weight
        return self.head(self.transformer(self.drop(x))[:, 1:]).unflatten(-1, (self.grid.depth, -1))

    def guided_logits(self, tokens: Tensor, masked: Tensor, labels: Tensor, guidance: float) -> Tensor:
        """The logits in float32, with guidance from a second half of the batch whose class is hidden."""
        if guidance == 1:
            return self.logits(tokens, masked, labels).float()
        both = torch.cat([labels, torch.full_like(labels, self.null)])
        conditional, unconditional = self.logits(tokens.repeat(2, 1, 1), masked.repeat(2, 1), both).float().chunk(2)
        return guide(conditional, unconditional, guidance)

    def by_position(self, values: Tensor) -> Tensor:
        """Tokens (B, h, w[, depth]) → (B, L, depth)."""
        return values.reshape(len(values), self.grid.positions, self.grid.depth)

    def halton_scores(self) -> Tensor:
        """A score for each position, (L,): the earlier in the Halton order, the higher."""
        order = torch.tensor(halton_order(self.grid.height, self.grid.width))
        return -order.argsort().to(self.device, torch.float32)


def draw_tokens(
    logits: Tensor, uniform: Tensor, tokens: Tensor, drawable: Tensor, options: SamplingOptions
) -> tuple[Tensor, Tensor]:
    """Tokens (...), drawn from logits (..., K) where they are drawable; and the log-probability of all, which no option changes.

    So the most confident tokens are those that the prior finds likeliest, at a temperature of 0 as well.
    """
    rows = max(1, DRAWN_TOGETHER // logits.shape[-1])
    parts = zip(logits.flatten(0, -2).split(rows), uniform.flatten().split(rows))
    drawn = torch.cat([draw(probabilities(part, options), numbers) for part, numbers in parts]).view_as(tokens)
    tokens = torch.where(drawable, drawn, tokens)
    chosen = logits.gather(-1, tokens[..., None]).squeeze(-1)
    return tokens, chosen - logits.logsumexp(-1)


def gumbel(uniform: Tensor) -> Tensor:
    """Gumbel noise from uniform numbers in [0, 1)."""
    return -torch.log(-torch.log(uniform.clamp(min=2**-25)))
