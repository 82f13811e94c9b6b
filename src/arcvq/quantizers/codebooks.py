"""CODEBOOKS, the kinds of codebook that a quantizer with several can hold, and what such quantizers share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from arcvq.config import Choice
from arcvq.errors import ArcvqError
from arcvq.quantizers.arcvq import ArcVQ
from arcvq.quantizers.base import Quantizer
from arcvq.quantizers.cvq import CVQ
from arcvq.quantizers.emavq import EMAVQ
from arcvq.quantizers.options import QuantizerConfig
from arcvq.quantizers.quantized import UpdateInputs
from arcvq.quantizers.samp import Samp
from arcvq.quantizers.simvq import SimVQ
from arcvq.quantizers.vq import VQ, VQConfig
from arcvq.registry import Registry

# The most codebooks, because each is built as a module, and configurations may come from untrusted files.
MAX_CODEBOOKS = 1024

CODEBOOKS: Registry[VQ] = Registry("codebook", {"vq": VQ, "arcvq": ArcVQ, "cvq": CVQ, "emavq": EMAVQ, "simvq": SimVQ})


@dataclass(kw_only=True)
class NestedConfig(QuantizerConfig):
    """Options of a quantizer that holds others, beyond those every quantizer has.

    codebook  the kind of its codebooks and their options (losses, estimator, SAMP, restart); how many codes, their width, heads
              and total_steps are said outside
    """

    codebook: Annotated[VQConfig, Choice(CODEBOOKS, "vq")]

    def __post_init__(self) -> None:
        super().__post_init__()
        for option in fields(QuantizerConfig):
            if getattr(self.codebook, option.name) not in (option.default, getattr(self, option.name)):
                raise ArcvqError(
                    f"codebook.{option.name} is an option of the whole quantizer: say {option.name} outside codebook"
                )


class Nested(Quantizer):
    """A quantizer that holds others, `layers`: each is a codebook, quantizes rows of width code_dim, and has its own losses and
    updates. `codebook` has the codes of one layer after the other, and statistics are over all of them.
    """

    Config = NestedConfig
    config: NestedConfig

    def __init__(self, dim: int, codebook_size: int = 512, **options: Any) -> None:
        super().__init__(dim, codebook_size, **options)
        config = self.config
        inner = replace(
            config.codebook,
            codebook_size=config.codebook_size,
            code_dim=None,
            heads=1,
            channel_last=True,  # their latents are rows
            total_steps=config.total_steps,
        )
        self.layers = nn.ModuleList(CODEBOOKS.build(inner, self.code_dim) for _ in range(self.codebooks))
        self.inits_from_latents = inner.init == "kmeans"

    @property
    def codebook(self) -> Tensor:  # type: ignore[override]
        """The codes of all layers, one layer after the other (layers · K, code_dim)."""
        return self.layer(0).codebook if self.codebooks == 1 else torch.cat([each.codebook for each in self.vqs()])

    @property
    def samp(self) -> Samp:
        """The first layer's ball and ArcLoss; all layers have the same."""
        return self.layer(0).samp

    def layer(self, index: int) -> VQ:
        """The codebook that takes this turn, counted from 0: of a single one every turn is its own."""
        layer = self.layers[index % self.codebooks]
        assert isinstance(layer, VQ)
        return layer

    def vqs(self) -> list[VQ]:
        """All layers."""
        return [self.layer(i) for i in range(self.codebooks)]

    def mean_terms(self, terms: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """The mean of each loss or statistic over the turns, by name."""
        return {name: torch.stack([each[name] for each in terms]).mean(dim=0) for name in terms[0]}

    def mean_stats(self, stats: Sequence[dict[str, Tensor]], tokens: Tensor, valid: Tensor | None) -> dict[str, Tensor]:
        """The layers' statistics as means, and usage and perplexity over the codes of all layers."""
        return self.mean_terms(stats) | self.token_stats(tokens, valid)

    def _update(self, inputs: Sequence[UpdateInputs]) -> None:
        """After each step: the update of each layer, once, with all rows that it quantized."""
        super()._update(inputs)
        joined, turns = UpdateInputs.join(inputs), self.codebooks
        assert joined.tokens is not None
        for i, layer in enumerate(self.vqs()):
            valid = None if joined.valid is None else joined.valid[i::turns]
            layer.update([UpdateInputs(joined.latents[i::turns], joined.tokens[i::turns], valid)])

    def update(self, inputs: Sequence[UpdateInputs]) -> None:
        """The update after one optimizer step. When frozen, only the step counts are incremented, those of the layers as well."""
        super().update(inputs)
        if self.frozen:
            for layer in self.vqs():
                Quantizer._update(layer, inputs)

    @property
    def needs_updates(self) -> bool:
        return any(layer.needs_updates for layer in self.vqs())
