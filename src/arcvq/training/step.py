"""One optimizer step as a function of its batch: the device's work and nothing else, to be called or captured alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from torch import Tensor, nn

from arcvq.data import to_unit
from arcvq.quantizers import Quantized
from arcvq.tokenizers import Tokenizer


class Outcome(NamedTuple):
    """What a step tells: scalars on the device, free of the graph they came from."""

    terms: dict[str, Tensor]  # the batch's loss terms by name, weighted
    stats: dict[str, Tensor]  # the quantizer's, of the last micro-batch


@dataclass
class Step:
    """`step(batch)`: pixels, model, losses, gradients, optimizer, upkeep. Leaves no gradient behind.

    read             a batch as the loop hands it out → uint8 (b, C, H, W) on the device
    model            images in [-1, 1] → reconstruction, Quantized; the tokenizer as Accelerate prepared it
    tokenizer        the same without the wrapping, for its upkeep
    optimizer        as Accelerate prepared it
    compile_options  forward pass and upkeep each as one compiled function; None: as they are
    compiled_from    from so many images on: an epoch's smaller last batch is not worth a compilation of its own
    """

    accelerator: Accelerator
    model: nn.Module
    optimizer: AcceleratedOptimizer
    objective: Callable[[Tensor, Tensor], Tensor]
    tokenizer: Tokenizer
    read: Callable[[Tensor], Tensor]
    gradient_clip: float | None = None
    compile_options: dict[str, Any] | None = None
    compiled_from: int = 1

    def __post_init__(self) -> None:
        self.layout = image_layout(self.accelerator.device)
        self.compiled = (self.forward, self.upkeep)
        if self.compile_options is not None:
            forward = torch.compile(copied(self.forward), dynamic=False, options=self.compile_options)
            self.compiled = (forward, torch.compile(copied(self.upkeep), dynamic=False))

    def __call__(self, batch: Tensor, shares: Sequence[float] = (1.0,)) -> Outcome:
        """`shares`: one micro-batch each, as much of the global batch as it says."""
        outputs: list[Quantized] = []
        terms: dict[str, Tensor] = {}
        whole = batch.shape[0] >= self.compiled_from
        forward, upkeep = self.compiled if whole else (self.forward, self.upkeep)
        for i, (part, share) in enumerate(zip(self.read(batch).tensor_split(len(shares)), shares)):
            with nullcontext() if i == len(shares) - 1 else self.accelerator.no_sync(self.model):
                loss, losses, quantized = forward(part)
                self.accelerator.backward(loss if share == 1 else share * loss)
            outputs.append(quantized)
            for name, term in losses.items():
                own = term if share == 1 else share * term
                terms[name] = terms[name] + own if name in terms else own
        if self.gradient_clip is not None:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.gradient_clip)
        self.optimizer.step()
        if not self.optimizer.step_was_skipped:
            upkeep(outputs)
        self.optimizer.zero_grad()
        return Outcome(terms, outputs[-1].stats)

    def forward(self, pixels: Tensor) -> tuple[Tensor, dict[str, Tensor], Quantized]:
        """uint8 (b, C, H, W) → the loss, its terms, and what the quantizer gave: off the graph, all but the loss, for a compiled
        function's backward pass asks for a gradient of everything that is on it."""
        images = to_unit(pixels, self.layout)  # (b, C, H, W) in [-1, 1]
        reconstruction, quantized = self.model(images)
        losses = {"reconstruction": self.objective(reconstruction, images), **quantized.losses}
        loss = torch.stack(list(losses.values())).sum()
        return loss, {name: term.detach() for name, term in losses.items()}, quantized.detach()

    def upkeep(self, outputs: Sequence[Quantized]) -> None:
        self.tokenizer.after_step(*outputs)


def image_layout(device: torch.device) -> torch.memory_format:
    """How images, and the weights that meet them, lie in memory: a GPU's convolutions want the channels last."""
    return torch.channels_last if device.type == "cuda" else torch.preserve_format


def copied(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method with code of its own. Of one piece of code torch keeps a few compilations, those of trainings that are over among
    them, and then leaves it uncompiled: the ninth training of a process would be slow."""
    bound: Any = method
    of = bound.__func__
    own = FunctionType(of.__code__.replace(), of.__globals__, of.__name__, of.__defaults__, of.__closure__)
    return MethodType(own, bound.__self__)
