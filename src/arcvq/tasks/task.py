"""What is trained: the networks, their losses on a batch, and what follows a step. The training loop knows only this."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from arcvq.data.source import Batch, Source
from arcvq.errors import ArcvqError


class StepOutput(NamedTuple):
    """What one network's loss on one micro-batch returns. All tensors but `loss` are detached."""

    loss: Tensor  # what is differentiated: the sum of the terms
    terms: Mapping[str, Tensor]  # the parts of the loss by name, weighted; summed over micro-batches and logged
    stats: Mapping[str, Tensor] = {}  # other scalars to log, of the last micro-batch
    update: Any = None  # what `after_step` needs
    shared: Mapping[str, Any] = {}  # for the networks that step after this one, same micro-batch
    nonfinite: Tensor | None = None  # how many values were NaN or infinite


def sum_of_terms(terms: Mapping[str, Tensor], **output: Any) -> StepOutput:
    """A StepOutput whose loss is the sum of these terms."""
    loss = torch.stack(list(terms.values())).sum()
    return StepOutput(loss, {name: term.detach() for name, term in terms.items()}, **output)


def memory_format(device: torch.device) -> torch.memory_format:
    """Channels last on a GPU, where convolutions need it."""
    return torch.channels_last if device.type == "cuda" else torch.preserve_format


class Task:
    """What is trained. Subclasses override `loss`, and of the rest what they need.

    The loop reads nothing on the host between steps, so `loss` and `after_step` must not either: then a step can be compiled and
    captured. What decides on the host goes into `phase`: one compiled function and one CUDA graph are made for each phase.
    """

    # What learns, one optimizer each, stepped in this order. An averaged copy stands in during evaluation: ask for it by name.
    networks: dict[str, nn.Module]
    # Used and never trained: a perceptual network, the tokenizer under a prior.
    frozen: nn.ModuleDict
    # What a progress bar shows of an evaluation, and the metric whose lowest value `select: test-best` keeps.
    headline: tuple[str, ...] = ()
    selection: str | None = None

    def __init__(self, networks: Mapping[str, nn.Module], frozen: Mapping[str, nn.Module] | None = None) -> None:
        self.networks = dict(networks)
        self.frozen = nn.ModuleDict(frozen or {}).requires_grad_(False).eval()

    def phase(self, step: int) -> Hashable:
        """What is on at this step: which networks and parameters learn, which terms count."""
        return None

    def trained(self, phase: Hashable) -> dict[str, Sequence[str]]:
        """The networks that learn in this phase, in the order of their steps; for each the beginnings of the names of the
        parameters that do, or nothing for all of them."""
        return dict.fromkeys(self.networks, ())

    def begin_phase(self, phase: Hashable) -> None:
        """Called on the host when the phase changes, e.g. to freeze a codebook."""

    def prepare(self, source: Source) -> None:
        """Called once, before the first step of a new training, e.g. for k-means on the latents."""

    def init_from(self, source: str) -> None:
        """Called instead of `prepare`: load the weights of an earlier training."""
        raise ArcvqError(f"training.init_from: {type(self).__name__} cannot start from other weights")

    def loss(
        self, name: str, network: nn.Module, batch: Batch, shared: Mapping[str, Any], phase: Hashable
    ) -> StepOutput:
        """The loss that network `name` learns from. `network` is it as this process calls it (wrapped, when there are several);
        the others are in `self.networks`, without gradients. Device work only."""
        raise NotImplementedError

    def after_step(self, name: str, updates: Sequence[Any], phase: Hashable) -> None:
        """After each optimizer step of network `name`: what its micro-batches returned as `update`. Device work only."""

    def evaluate(self, source: Source, folder: Path | None, step: int) -> dict[str, Any]:
        """Numbers for a line of metrics.jsonl. Changes nothing that trains; may write files into the run folder."""
        return {}

    def save(self, folder: Path, notes: dict[str, Any]) -> None:
        """Write the model into `folder`, in whatever form the task loads it again."""

    def facts(self, source: Source) -> dict[str, str]:
        """Lines that a dry run prints: label → text."""
        return {}

    @property
    def compile_options(self) -> dict[str, Any]:
        """Options for torch.compile."""
        return {}

    @property
    def capture_blocker(self) -> str | None:
        """Why no CUDA graph can hold a step of this task, or None."""
        return None
