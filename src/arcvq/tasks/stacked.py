"""Train a stack of autoencoders (HVQ-VAE): one level after another, from the lowest up."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from torch import nn

from arcvq.data.source import Batch
from arcvq.errors import ArcvqError
from arcvq.objectives import Objective
from arcvq.tasks.phase import Phase
from arcvq.tasks.task import StepOutput, sum_of_terms
from arcvq.tasks.tokenizer import TokenizerTask, quantizer_output, unit_images
from arcvq.tokenizers import StackedTokenizer


class StackedTask(TokenizerTask):
    """One stage per level; the phase is the level that learns. The levels below it are finished and frozen.

    stages  (steps, ()) for each level, from the lowest up
    """

    def __init__(
        self,
        tokenizer: StackedTokenizer,
        objective: Objective,
        *,
        stages: Sequence[tuple[int, Sequence[str]]],
        seed: int = 0,
    ) -> None:
        below = [f"lower.{i}" for i in range(len(tokenizer.lower))]
        parts: list[Sequence[str]] = [*([name] for name in below), ["autoencoder", "quantizer"]]
        if len(stages) != len(parts) or any(prefixes for _, prefixes in stages):
            raise ArcvqError(
                f"training.stages: a stack of {len(parts)} levels trains one level per stage, from the lowest up: give "
                f"{len(parts)} stages with lengths and without `train`"
            )
        lengths = [steps for steps, _ in stages]
        super().__init__(tokenizer, objective, stages=list(zip(lengths, parts)), seed=seed)
        for quantizer, steps in zip(tokenizer.quantizers, lengths):
            if quantizer.config.total_steps is None:
                quantizer.set_total_steps(steps)

    @property
    def stack(self) -> StackedTokenizer:
        """The tokenizer, as the stack that it is."""
        tokenizer = self.tokenizer
        assert isinstance(tokenizer, StackedTokenizer)
        return tokenizer

    def loss(
        self, name: str, network: nn.Module, batch: Batch, shared: Mapping[str, Any], phase: Hashable
    ) -> StepOutput:
        """The losses of the level that learns."""
        assert isinstance(phase, Phase)
        images = unit_images(batch)
        output = network(images, level=phase.stage)
        # Above the lowest level, the reconstruction of the pixels has no gradient and its loss is only logged.
        terms = {**self.objective(output.reconstruction, images, stage=phase.stage), **output.quantized.losses}
        return sum_of_terms(terms, **(quantizer_output(output.quantized) | {"update": output.detach()}))

    def after_step(self, name: str, updates: Sequence[Any], phase: Hashable) -> None:
        """Update the quantizer of the level that learns."""
        assert isinstance(phase, Phase)
        self.stack.after_level_step(phase.stage, list(updates))
