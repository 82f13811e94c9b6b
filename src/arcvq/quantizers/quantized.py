"""What a quantizer returns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass
class UpdateInputs:
    """What an update needs of a forward pass: flattened, detached, at the codes' own width."""

    latents: Tensor  # (N, code_dim)
    tokens: Tensor | None  # (N,) int64; −1 where the position is padding; None where there are no codes
    valid: Tensor | None  # (N,) bool, when a mask was given

    @staticmethod
    def join(inputs: Sequence[UpdateInputs]) -> UpdateInputs:
        """The micro-batches of one step as one."""
        if len(inputs) == 1:
            return inputs[0]
        masks = [
            torch.ones(len(r.latents), dtype=torch.bool, device=r.latents.device) if r.valid is None else r.valid
            for r in inputs
        ]
        tokens = [record.tokens for record in inputs if record.tokens is not None]
        return UpdateInputs(
            latents=torch.cat([record.latents for record in inputs]),
            tokens=torch.cat(tokens) if tokens else None,
            valid=None if all(record.valid is None for record in inputs) else torch.cat(masks),
        )


@dataclass
class Quantized:
    """Also unpacks as `quantized, tokens, loss = quantizer(latents)`."""

    quantized: Tensor  # like the latents; to the bit what `decode(tokens)` gives (in the latents' dtype)
    tokens: Tensor | None  # (B, *spatial), or (B, *spatial, heads) with several heads; None where there are no codes
    loss: Tensor  # the sum of `losses`, to be added to the reconstruction loss
    losses: dict[str, Tensor]  # each term by name, weighted
    stats: dict[str, Tensor]  # things to look at: perplexity, nonfinite, arc_weight, ball_radius, ...
    update_inputs: UpdateInputs  # for after_step

    def __iter__(self) -> Iterator[Any]:
        return iter((self.quantized, self.tokens, self.loss))

    def __getitem__(self, index: int) -> Any:
        return (self.quantized, self.tokens, self.loss)[index]

    def detach(self) -> Quantized:
        """The same, off the graph: to look at, and for after_step."""
        losses = {name: term.detach() for name, term in self.losses.items()}
        stats = {name: value.detach() for name, value in self.stats.items()}
        return replace(self, quantized=self.quantized.detach(), loss=self.loss.detach(), losses=losses, stats=stats)


for _dataclass in (UpdateInputs, Quantized):
    torch.export.register_dataclass(_dataclass, serialized_type_name=f"arcvq.{_dataclass.__name__}")
