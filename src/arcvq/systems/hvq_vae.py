"""HVQ-VAE: a hierarchy of stochastically quantized autoencoders, trained one after another."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import ClassVar

from arcvq.errors import ArcvqError
from arcvq.quantizers import HVQConfig
from arcvq.systems.config import StageConfig
from arcvq.systems.registry import System, register
from arcvq.tokenizers import HierarchicalTokenizer, HierarchicalTrunkConfig, Tokenizer

TOP = ["encoder", "quantizer", "decoder"]


@register("hvq-vae")
@dataclass(kw_only=True)
class HVQVAE(System):
    """The length of training is divided evenly among the layers, a stage each, from the lowest up."""

    summary: ClassVar[str] = (
        "two stacked autoencoders with codes drawn at random, the upper one trained on the lower one's latents"
    )
    citation: ClassVar[str] = "Williams et al., Hierarchical Quantized Autoencoders, NeurIPS 2020"
    quantizer_name: ClassVar[str] = "hvq"
    tokenizer: HierarchicalTrunkConfig = field(default_factory=HierarchicalTrunkConfig)
    quantizer: HVQConfig = field(default_factory=HVQConfig)

    def __post_init__(self) -> None:
        parts = [[f"lower.{i}"] for i in range(self.tokenizer.layers - 1)] + [TOP]
        training = self.training
        if not training.stages:
            (whole,) = training.plan()
            stages = [
                StageConfig(
                    train=part, epochs=_share(whole.epochs, i, len(parts)), steps=_share(whole.steps, i, len(parts))
                )
                for i, part in enumerate(parts)
            ]
            self.training = dataclasses.replace(training, epochs=None, steps=None, stages=stages)
        elif not all(stage.train for stage in training.stages):
            raise ArcvqError("training.stages: hvq-vae trains one layer a stage, so each must say what it trains")

    def build_tokenizer(self, channels: int, image_size: tuple[int, int], total_steps: int) -> Tokenizer:
        tokenizer = super().build_tokenizer(channels, image_size, total_steps)
        assert isinstance(tokenizer, HierarchicalTokenizer)
        if self.quantizer.total_steps is None:
            for quantizer, steps in zip(tokenizer.quantizers, self.layer_steps(total_steps)):
                quantizer.set_length(steps)
        return tokenizer

    def layer_steps(self, total_steps: int) -> list[int]:
        """Each layer's own part of the whole, from the lowest up: its temperature falls over that."""
        stages = self.training.plan()
        given, epochs = sum(stage.steps or 0 for stage in stages), sum(stage.epochs or 0 for stage in stages)
        lengths = self.training.stage_steps((total_steps - given) // epochs if epochs else 0)
        below = [f"lower.{i}" for i in range(self.tokenizer.layers - 1)]
        trained = [  # by each stage: the lowest layer that it names, or that is within or around what it names
            next((i for i, name in enumerate(below) if any(_overlap(part, name) for part in stage.train)), len(below))
            for stage in stages
        ]
        return [max(1, sum(n for n, i in zip(lengths, trained) if i == layer)) for layer in range(len(below) + 1)]


def _overlap(one: str, other: str) -> bool:
    """Whether one dotted name is the other, or begins it."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _share(length: int | None, index: int, parts: int) -> int | None:
    """Part `index` of a length cut into whole numbers."""
    if length is None:
        return None
    if length < parts:
        raise ArcvqError(f"training: {length} is too short for {parts} layers, which are trained one after another")
    return length * (index + 1) // parts - length * index // parts
