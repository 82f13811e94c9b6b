"""Priors that predict one token after another: likelihood, sampling and completion, written once for all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from arcvq.priors.noise import Noise
from arcvq.priors.prior import Prior, Progress, Sampler, cross_entropy
from arcvq.priors.replay import Replay
from arcvq.priors.sampling import SamplingOptions, draw, guide, probabilities


@dataclass
class State:
    """A generation on its way. All tensors keep their addresses.

    tokens  int64 (B, length), filled from the left
    labels  int64 (B,)
    cache   what the prior keeps of the tokens so far
    """

    tokens: Tensor
    labels: Tensor
    cache: Any = None


class AutoregressivePrior(Prior):
    """Tokens in raster order, those of a position one after another. A subclass writes `logits`, `begin` and `next_logits`."""

    def logits(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """The logits of every token given those before it: tokens (B, h, w[, depth]) → (B, length, K)."""
        raise NotImplementedError

    def begin(self, labels: Tensor) -> State:
        """The state before the first token, for labels (B,)."""
        return State(torch.zeros(len(labels), self.length, dtype=torch.int64, device=labels.device), labels)

    def next_logits(self, state: State, position: Tensor, kind: int) -> Tensor:
        """The logits (B, K) of the token at `position`, int64 (1,), given those before it in the state. Reads nothing on the host.

        `kind`: `step_kind` of the position.
        """
        raise NotImplementedError

    @property
    def step_kinds(self) -> int:
        """How many kinds of steps there are. The host knows which one a token needs, and each is recorded on its own."""
        return self.grid.depth

    def step_kind(self, index: int) -> int:
        """The kind of step of token number `index`: by default, which token of its position it is."""
        return index % self.grid.depth

    def compile_step(self) -> None:
        """Compile `next_logits`, for this object only."""
        self.next_logits = torch.compile(self.next_logits, dynamic=False)  # type: ignore[method-assign]

    @property
    def length(self) -> int:
        """Tokens per image."""
        return self.grid.positions * self.grid.depth

    def forward(self, values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.logits(values, self.training_labels(labels, len(values)))
        return {"cross_entropy": cross_entropy(logits, values.flatten(1)).mean()}

    @torch.no_grad()
    def evaluate(self, values: Tensor, labels: Tensor | None, noise: Noise) -> Tensor:
        """Bits per token of each image, exact."""
        logits = self.logits(values, self.all_labels(labels, len(values)))
        return cross_entropy(logits, values.flatten(1)).mean(1) / math.log(2)

    def make_sampler(self, options: SamplingOptions, batch: int) -> Sampler:
        return TokenSampler(self, options, batch)


class TokenSampler:
    """Draws batches of token grids, position by position. On a GPU its steps are recorded once and replayed for each batch."""

    def __init__(self, prior: AutoregressivePrior, options: SamplingOptions, batch: int) -> None:
        options.check_known(type(prior).__name__, prior.sampling_options)
        self.prior, self.options, self.batch, self.guided = prior, options, batch, options.guidance != 1
        device, length = prior.device, prior.length
        self.state = prior.begin(torch.full(((1 + self.guided) * batch,), prior.null, device=device))
        self.uniform = torch.zeros(batch, length, device=device)
        self.given = torch.full((batch, length), -1, device=device)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.steps = [Replay(partial(self.draw_next, kind), device) for kind in range(prior.step_kinds)]

    @torch.no_grad()
    def __call__(
        self, labels: Tensor | None, noise: Noise, known: Tensor | None = None, progress: Progress | None = None
    ) -> Tensor:
        """Token grids (batch, h, w[, depth])."""
        prior, grid = self.prior, self.prior.grid
        prior.check_known(known)
        self.state.labels[: self.batch] = prior.all_labels(labels, self.batch)
        self.given.copy_(torch.full_like(self.given, -1) if known is None else known.flatten(1))
        self.uniform.copy_(noise.uniform(prior.length))
        for index in range(prior.length):
            self.position.fill_(index)
            self.steps[prior.step_kind(index)]()
            if progress:
                progress(index + 1, prior.length)
        return self.state.tokens[: self.batch].reshape(self.batch, *grid.token_shape).clone()

    def draw_next(self, kind: int) -> None:
        """Draw the token at `position`, unless it is given, and put it into the state. Reads nothing on the host."""
        state, position, batch = self.state, self.position, self.batch
        logits = self.prior.next_logits(state, position, kind).float()
        if self.guided:
            logits = guide(logits[:batch], logits[batch:], self.options.guidance)
        drawn = draw(probabilities(logits, self.options), self.uniform[:, position].squeeze(1))[:, None]
        given = self.given[:, position]
        drawn = torch.where(given >= 0, given, drawn)
        state.tokens.index_copy_(1, position, torch.cat([drawn, drawn]) if self.guided else drawn)
