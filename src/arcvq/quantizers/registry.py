"""Quantizers by name, for configurations and saved models."""

from __future__ import annotations

from arcvq.quantizers.arcvq import ArcVQ
from arcvq.quantizers.base import Quantizer
from arcvq.quantizers.cvq import CVQ
from arcvq.quantizers.emavq import EMAVQ
from arcvq.quantizers.fsq import FSQ
from arcvq.quantizers.gaussian import Gaussian
from arcvq.quantizers.grouped import GroupedVQ
from arcvq.quantizers.hvq import HVQ
from arcvq.quantizers.lfq import LFQ
from arcvq.quantizers.multichannel import MultichannelVQ
from arcvq.quantizers.projected import ProjectedVQ
from arcvq.quantizers.residual import ResidualVQ
from arcvq.quantizers.simvq import SimVQ
from arcvq.quantizers.sq import SQ
from arcvq.quantizers.vmf import VonMisesFisher
from arcvq.quantizers.vq import VQ
from arcvq.registry import Registry

QUANTIZERS: Registry[Quantizer] = Registry(
    "quantizer",
    {
        "vq": VQ,
        "arcvq": ArcVQ,
        "cvq": CVQ,
        "emavq": EMAVQ,
        "hvq": HVQ,
        "simvq": SimVQ,
        "projected": ProjectedVQ,
        "residual": ResidualVQ,
        "grouped": GroupedVQ,
        "multichannel": MultichannelVQ,
        "sq": SQ,
        "fsq": FSQ,
        "lfq": LFQ,
        "gaussian": Gaussian,
        "vmf": VonMisesFisher,
    },
)
