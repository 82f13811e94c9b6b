"""Priors that predict one token after another: likelihood, sampling and completion, written once for all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from arcvq.priors.noise import Noise
from arcvq.priors.prior import Prior, Progress
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

    def next_logits(self, state: State, position: Tensor, level: int) -> Tensor:
        """The logits (B, K) of the token at `position`, int64 (1,), given those before it in the state. Reads nothing on the host.

        `level`: position modulo the tokens per position, on the host.
        """
        raise NotImplementedError

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
        """Token grids (batch, h, w[, depth]). Known tokens are kept; a token depends on those before it only."""
        options.check_known(type(self).__name__, self.sampling_options)
        self.check_known(known)
        own = self.all_labels(labels, batch)
        guided = options.guidance != 1
        state = self.begin(torch.cat([own, torch.full_like(own, self.null)]) if guided else own)
        uniform = noise.uniform(self.length)
        given = torch.full_like(state.tokens[:batch], -1) if known is None else known.to(own.device).flatten(1)
        position = torch.zeros(1, dtype=torch.int64, device=own.device)

        def draw_next(level: int) -> None:
            logits = self.next_logits(state, position, level).float()
            if guided:
                logits = guide(logits[:batch], logits[batch:], options.guidance)
            drawn = draw(probabilities(logits, options), uniform[:, position].squeeze(1))[:, None]
            drawn = torch.where(given[:, position] >= 0, given[:, position], drawn)
            state.tokens.index_copy_(1, position, torch.cat([drawn, drawn]) if guided else drawn)

        steps = [Replay(partial(draw_next, level), own.device) for level in range(self.grid.depth)]
        for index in range(self.length):
            position.fill_(index)
            steps[index % self.grid.depth]()
            if progress:
                progress(index + 1, self.length)
        return state.tokens[:batch].reshape(batch, *self.grid.token_shape)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy in nats of each target (B, L) under logits (B, L, K), in float32."""
    return F.cross_entropy(logits.float().transpose(1, 2), targets, reduction="none")
