"""The interface of a prior: a distribution over token grids, or over latents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arcvq.errors import ArcvqError
from arcvq.priors.noise import Noise
from arcvq.priors.sampling import SamplingOptions

# Called with (steps done, steps in all) while images are made.
Progress = Callable[[int, int], None]
# Makes one batch: called with labels, noise, known tokens and progress, it gives what `Prior.sample` gives.
Sampler = Callable[[Tensor | None, Noise, Tensor | None, Progress | None], Tensor]
MAX_POSITIONS = 2**16
# What the frequencies of all tokens of a level add up to.
FREQUENCY_TOTAL = 2**24


@dataclass(frozen=True, kw_only=True)
class Grid:
    """What a prior is over: the tokens, or the latents, of one image.

    height, width  positions
    codebook_size  K: tokens are 0 … K−1
    depth          tokens per position
    latent_dim     D, the width of the latents
    classes        how many classes images have; 0: a prior without classes
    """

    height: int
    width: int
    codebook_size: int
    depth: int = 1
    latent_dim: int = 1
    classes: int = 0

    def __post_init__(self) -> None:
        for name in ("height", "width", "codebook_size", "depth", "latent_dim"):
            if not 1 <= getattr(self, name) <= 2**24:
                raise ArcvqError(f"grid.{name} must be from 1 to {2**24}, got {getattr(self, name)}")
        if self.codebook_size > 2**20:
            raise ArcvqError(f"a prior's codebook has at most {2**20} codes, got {self.codebook_size}")
        if not 0 <= self.classes <= 2**20 or self.positions > MAX_POSITIONS:
            raise ArcvqError(f"a prior has at most {MAX_POSITIONS} positions and {2**20} classes, got {self}")

    @property
    def positions(self) -> int:
        return self.height * self.width

    @property
    def token_shape(self) -> tuple[int, ...]:
        """The shape of one image's tokens: (h, w), or (h, w, tokens per position)."""
        return (self.height, self.width) if self.depth == 1 else (self.height, self.width, self.depth)


@dataclass(kw_only=True)
class PriorConfig:
    """What every prior has.

    label_dropout  share of the training images whose class is hidden, for guidance
    """

    label_dropout: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.label_dropout < 1:
            raise ArcvqError(f"prior.label_dropout must be from 0 to below 1, got {self.label_dropout}")

    @property
    def soft_temperature(self) -> float | None:
        """Of a prior over tokens that learns from latents, the temperature at which each step draws their tokens; else None."""
        return None

    def check_range(self, low: int, high: int, *names: str) -> None:
        """Raise unless these options are None or from `low` to `high`, so that no file can ask for a network of any size."""
        for name in names:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ArcvqError(f"prior.{name} must be from {low} to {high}, got {value}")


class Prior(nn.Module):
    """A distribution over what a tokenizer makes of images. It knows neither images nor training.

    Labels are int64 (B,), 0 … classes−1, or None; the class `null` stands for none.
    """

    Config: ClassVar[type[PriorConfig]] = PriorConfig
    models: ClassVar[Literal["tokens", "latents"]] = "tokens"
    # The options of `sample` that mean something here.
    sampling_options: ClassVar[tuple[str, ...]] = ("temperature", "top_k", "top_p", "guidance")
    # What the evaluation numbers of this prior are called, and whether they are exact.
    metric: ClassVar[str] = "bits_per_token"

    def __init__(self, grid: Grid, config: PriorConfig) -> None:
        super().__init__()
        self.grid, self.config = grid, config
        if self.models == "tokens":  # by which tokens are compressed where the prior itself is too slow or not portable
            self.register_buffer("frequencies", whole_frequencies(torch.zeros(grid.depth, grid.codebook_size)))
        self.frequencies: Tensor

    def forward(self, values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Training: tokens (B, h, w[, depth]), or latents (B, D, h, w) → the terms of the loss, means over the batch."""
        raise NotImplementedError

    def evaluate(self, values: Tensor, labels: Tensor | None, noise: Noise) -> Tensor:
        """The value of `metric` for each image, (B,): bits per token, unless the prior has another metric."""
        raise NotImplementedError

    def make_sampler(self, options: SamplingOptions, batch: int) -> Sampler:
        """What draws `batch` token grids, or latents, at a time. Steps that are CUDA graphs are recorded once for all batches."""
        raise NotImplementedError

    @torch.no_grad()
    def sample(
        self,
        labels: Tensor | None,
        noise: Noise,
        options: SamplingOptions,
        *,
        batch: int,
        known: Tensor | None = None,
        progress: Progress | None = None,
    ) -> Tensor:
        """Draw `batch` token grids, or latents. `known`: tokens that are given, −1 where they are to be drawn."""
        return self.make_sampler(options, batch)(labels, noise, known, progress)

    def compile_step(self) -> None:
        """Compile what a sampling step computes, for this object only."""
        raise NotImplementedError

    def resolved_options(self, options: SamplingOptions) -> dict[str, Any]:
        """Every option of this prior's sampling with its value: the given one, or the prior's own."""
        values = {name: getattr(options, name) for name in self.sampling_options}
        return {n: getattr(self.config, n, None) if value is None else value for n, value in values.items()}

    def after_step(self) -> None:
        """Called after each optimizer step: what changes with time. Device work only."""

    def init_from_values(self, values: Tensor) -> None:
        """Called once before training with some of the training values."""

    def count_tokens(self, parts: Iterable[Tensor]) -> None:
        """Called once before training, of a prior over tokens, with all training tokens in parts (..., h, w[, depth])."""
        codes, counts = self.grid.codebook_size, torch.zeros_like(self.frequencies, dtype=torch.int64)
        for part in parts:
            levels = part.reshape(-1, self.grid.depth).T.to(self.device)
            counts += torch.stack([level.bincount(minlength=codes) for level in levels])
        self.frequencies.copy_(whole_frequencies(counts))

    @property
    def null(self) -> int:
        """The number of the class that stands for none."""
        return self.grid.classes

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def training_labels(self, labels: Tensor | None, batch: int) -> Tensor:
        """Labels (B,) for a training step: some of them hidden, at random; all of them if there are none."""
        labels = self.all_labels(labels, batch)
        if not self.grid.classes or not self.config.label_dropout:
            return labels
        hidden = torch.rand(batch, device=labels.device) < self.config.label_dropout
        return torch.where(hidden, self.null, labels)

    def all_labels(self, labels: Tensor | None, batch: int) -> Tensor:
        """Labels (B,), `null` where there are none."""
        if labels is None or not self.grid.classes:
            return torch.full((batch,), self.null, dtype=torch.int64, device=self.device)
        return labels.to(self.device)

    def check_known(self, known: Tensor | None) -> None:
        """Raise unless given tokens are those of one grid each, in range."""
        if known is not None and known.shape[1:] != self.grid.token_shape:
            raise ArcvqError(
                f"expected known tokens (B, {', '.join(map(str, self.grid.token_shape))}), got {tuple(known.shape)}"
            )
        if known is not None and known.numel() and int(known.max()) >= self.grid.codebook_size:
            raise ArcvqError(f"known tokens are from 0 to {self.grid.codebook_size - 1}, got {int(known.max())}")

    @property
    def shape_text(self) -> str:
        """What an image is to this prior: how many tokens or latents, of how many codes or channels."""
        grid = self.grid
        if self.models == "latents":
            return f"{grid.height}×{grid.width} of {grid.latent_dim:,} channels"
        return f"{'×'.join(map(str, grid.token_shape))} of {grid.codebook_size:,} codes"

    def describe(self) -> Mapping[str, Any]:
        """Rows of the model card."""
        return {"parameters of the prior": f"{sum(p.numel() for p in self.parameters()):,}"}


def cross_entropy(logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """The cross-entropy in nats of each target (...) under logits (..., K), in float32."""
    rows = logits.float().flatten(0, -2)
    return F.cross_entropy(rows, targets.flatten(), reduction="none", label_smoothing=label_smoothing).view_as(targets)


def require_depth_1(grid: Grid, name: str) -> None:
    """Raise if positions have several tokens."""
    if grid.depth > 1:
        raise ArcvqError(
            f"{name} is over one token per position, and this tokenizer has {grid.depth}: use rq-transformer or maskgit"
        )


def whole_frequencies(counts: Tensor) -> Tensor:
    """Counts (levels, K) → int32 frequencies of at least 1 that add up to FREQUENCY_TOTAL in each level."""
    counts = counts.double()
    share = counts / counts.sum(1, keepdim=True).clamp(min=1)
    frequencies = 1 + (share * (FREQUENCY_TOTAL - counts.shape[1])).floor().to(torch.int32)
    rest = (FREQUENCY_TOTAL - frequencies.sum(1, keepdim=True)).to(torch.int32)
    return frequencies.scatter_add(1, frequencies.argmax(1, keepdim=True), rest)
