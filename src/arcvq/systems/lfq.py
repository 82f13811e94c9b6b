"""LFQ: a tokenizer whose codes are signs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from arcvq.quantizers import LFQConfig
from arcvq.systems.registry import System, register


@register("lfq")
@dataclass(kw_only=True)
class LFQTokenizer(System):
    summary: ClassVar[str] = (
        "the sign of each channel; the codebook is the corners of a cube, kept in use by an entropy term"
    )
    citation: ClassVar[str] = (
        "Yu et al., Language Model Beats Diffusion: Tokenizer is Key to Visual Generation, ICLR 2024"
    )
    quantizer_name: ClassVar[str] = "lfq"
    quantizer: LFQConfig = field(default_factory=LFQConfig)
