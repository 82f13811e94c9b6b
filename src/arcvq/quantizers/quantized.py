"""What a quantizer returns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass
class UpdateInputs:
    """What `after_step` needs from a forward pass: its latents, tokens and mask, flattened and detached."""

    latents: Tensor  # (N, code_dim)
    tokens: Tensor | None  # (N,) int64; −1 where the position is padding; None where there are no codes
    valid: Tensor | None  # (N,) bool, when a mask was given

    @staticmethod
    def join(inputs: Sequence[UpdateInputs]) -> UpdateInputs:
        """Concatenate the micro-batches of one step."""
        if len(inputs) == 1:
            return inputs[0]
        masks = [
            torch.ones(len(x.latents), dtype=torch.bool, device=x.latents.device) if x.valid is None else x.valid
            for x in inputs
        ]
        tokens = [x.tokens for x in inputs if x.tokens is not None]
        return UpdateInputs(
            latents=torch.cat([x.latents for x in inputs]),
            tokens=torch.cat(tokens) if tokens else None,
            valid=None if all(x.valid is None for x in inputs) else torch.cat(masks),
        )


@dataclass
class Quantized:
    """The output of a quantizer. It unpacks as `quantized, tokens, loss = quantizer(latents)`."""

    quantized: Tensor  # shape and dtype of the latents; to the bit what `decode(tokens)` gives in that dtype
    tokens: Tensor | None  # (B, *spatial), or (B, *spatial, heads) with several heads; None where there are no codes
    loss: Tensor  # the sum of `losses`, to be added to the reconstruction loss
    losses: dict[str, Tensor]  # each term by name, weighted
    stats: dict[str, Tensor]  # for logs: perplexity, nonfinite, arc_weight, ball_radius, ...
    update_inputs: UpdateInputs  # for after_step

    def __iter__(self) -> Iterator[Any]:
        return iter((self.quantized, self.tokens, self.loss))

    def __getitem__(self, index: int) -> Any:
        return (self.quantized, self.tokens, self.loss)[index]

    def detach(self) -> Quantized:
        """A copy without the autograd graph, for logs and `after_step`."""
        losses = {name: term.detach() for name, term in self.losses.items()}
        stats = {name: value.detach() for name, value in self.stats.items()}
        return replace(self, quantized=self.quantized.detach(), loss=self.loss.detach(), losses=losses, stats=stats)


for _dataclass in (UpdateInputs, Quantized):
    torch.export.register_dataclass(_dataclass, serialized_type_name=f"arcvq.{_dataclass.__name__}")
