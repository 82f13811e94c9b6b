"""FSQ: a tokenizer whose codes are roundings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from arcvq.quantizers import FSQConfig
from arcvq.systems.registry import System, register


@register("fsq")
@dataclass(kw_only=True)
class FSQTokenizer(System):
    summary: ClassVar[str] = "each channel squashed and rounded; the codebook is a grid that nobody trains"
    citation: ClassVar[str] = "Mentzer et al., Finite Scalar Quantization: VQ-VAE Made Simple, ICLR 2024"
    quantizer_name: ClassVar[str] = "fsq"
    quantizer: FSQConfig = field(default_factory=FSQConfig)
