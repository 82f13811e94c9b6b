"""What a quantizer returns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Record:
    """What upkeep needs of a forward pass: flattened, detached, at the codes' own width."""

    latents: Tensor  # (N, code_dim)
    tokens: Tensor | None  # (N,) int64; −1 where the position is padding; None where there are no codes
    valid: Tensor | None  # (N,) bool, when a mask was given


@dataclass
class Quantized:
    """Also unpacks as `quantized, tokens, loss = quantizer(latents)`."""

    quantized: Tensor  # like the latents; to the bit what `decode(tokens)` gives (in the latents' dtype)
    tokens: (
        Tensor | None
    )  # (B, *spatial), or (B, *spatial, heads) when there are several heads; None where there are no codes
    loss: Tensor  # the sum of `losses`, to be added to the reconstruction loss
    losses: dict[str, Tensor]  # each term by name, weighted
    stats: dict[str, Tensor]  # things to look at: perplexity, nonfinite, arc_weight, ball_radius, ...
    record: Record  # for after_step

    def __iter__(self) -> Iterator[Tensor | None]:
        return iter((self.quantized, self.tokens, self.loss))


for _dataclass in (Record, Quantized):
    torch.export.register_dataclass(_dataclass, serialized_type_name=f"arcvq.{_dataclass.__name__}")
