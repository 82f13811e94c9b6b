"""Quantizers by name, for configurations and saved models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arcvq.config import nearest, parse
from arcvq.errors import ArcvqError
from arcvq.quantizers.arcvq import ArcVQ
from arcvq.quantizers.base import Quantizer
from arcvq.quantizers.cvq import CVQ
from arcvq.quantizers.emavq import EMAVQ
from arcvq.quantizers.fsq import FSQ
from arcvq.quantizers.gaussian import Gaussian
from arcvq.quantizers.hvq import HVQ
from arcvq.quantizers.lfq import LFQ
from arcvq.quantizers.simvq import SimVQ
from arcvq.quantizers.sq import SQ
from arcvq.quantizers.vmf import VonMisesFisher
from arcvq.quantizers.vq import VQ

QUANTIZERS: dict[str, type[Quantizer]] = {
    "vq": VQ,
    "arcvq": ArcVQ,
    "cvq": CVQ,
    "emavq": EMAVQ,
    "hvq": HVQ,
    "simvq": SimVQ,
    "sq": SQ,
    "fsq": FSQ,
    "lfq": LFQ,
    "gaussian": Gaussian,
    "vmf": VonMisesFisher,
}


def quantizer_class(name: str) -> type[Quantizer]:
    if name not in QUANTIZERS:
        raise ArcvqError(f"unknown quantizer {name!r}{nearest(name, QUANTIZERS)}")
    return QUANTIZERS[name]


def quantizer_name(quantizer: Quantizer) -> str:
    """The registered name of a quantizer, so that a saved model can be built again."""
    for name, cls in QUANTIZERS.items():
        if type(quantizer) is cls:
            return name
    raise ArcvqError(
        f"{type(quantizer).__name__} is not registered: add it to arcvq.quantizers.QUANTIZERS to save it by name"
    )


def build_quantizer(name: str, dim: int, options: Mapping[str, Any]) -> Quantizer:
    """From a plain mapping, strictly: {"codebook_size": 512, "arc": {"scale": 10.0}, ...}."""
    cls = quantizer_class(name)
    config = parse(cls.Config, options, "quantizer")
    return cls(dim, **{field: getattr(config, field) for field in config.__dataclass_fields__})
