"""Quantizers: thin modules over `arcvq.functional`. They know nothing of images."""

from arcvq.quantizers.arcvq import ArcVQ, ArcVQConfig
from arcvq.quantizers.base import Quantizer
from arcvq.quantizers.continuous import Continuous, ContinuousConfig
from arcvq.quantizers.cvq import CVQ, Contrastive, CVQConfig
from arcvq.quantizers.emavq import EMAVQ, EMAVQConfig
from arcvq.quantizers.entropy import Entropy
from arcvq.quantizers.fsq import FSQ, FSQConfig
from arcvq.quantizers.gaussian import Gaussian
from arcvq.quantizers.grouped import GroupedVQ, GroupedVQConfig
from arcvq.quantizers.hvq import HVQ, HVQConfig, Revival
from arcvq.quantizers.lfq import LFQ, LFQConfig
from arcvq.quantizers.multichannel import MultichannelVQ, MultichannelVQConfig
from arcvq.quantizers.options import QuantizerConfig
from arcvq.quantizers.projected import ProjectedVQ, ProjectedVQConfig
from arcvq.quantizers.quantized import Quantized, UpdateInputs
from arcvq.quantizers.registry import QUANTIZERS
from arcvq.quantizers.residual import ResidualVQ, ResidualVQConfig
from arcvq.quantizers.restart import Restart
from arcvq.quantizers.samp import Arc, Ball, Samp
from arcvq.quantizers.simvq import SimVQ, SimVQConfig
from arcvq.quantizers.sq import SQ, SQConfig, Temperature
from arcvq.quantizers.vmf import VonMisesFisher, VonMisesFisherConfig
from arcvq.quantizers.vq import VQ, VQConfig

__all__ = [
    "CVQ",
    "EMAVQ",
    "FSQ",
    "HVQ",
    "LFQ",
    "QUANTIZERS",
    "SQ",
    "VQ",
    "Arc",
    "ArcVQ",
    "ArcVQConfig",
    "Ball",
    "CVQConfig",
    "Continuous",
    "ContinuousConfig",
    "Contrastive",
    "EMAVQConfig",
    "Entropy",
    "FSQConfig",
    "Gaussian",
    "GroupedVQ",
    "GroupedVQConfig",
    "HVQConfig",
    "LFQConfig",
    "MultichannelVQ",
    "MultichannelVQConfig",
    "ProjectedVQ",
    "ProjectedVQConfig",
    "Quantized",
    "Quantizer",
    "QuantizerConfig",
    "ResidualVQ",
    "ResidualVQConfig",
    "Restart",
    "Revival",
    "SQConfig",
    "Samp",
    "SimVQ",
    "SimVQConfig",
    "Temperature",
    "UpdateInputs",
    "VQConfig",
    "VonMisesFisher",
    "VonMisesFisherConfig",
]
