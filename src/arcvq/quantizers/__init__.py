"""Quantizers: thin modules over `arcvq.functional`. They know nothing of images."""

from arcvq.quantizers.arcvq import ArcVQ, ArcVQConfig
from arcvq.quantizers.base import Quantizer, QuantizerConfig
from arcvq.quantizers.continuous import Continuous, ContinuousConfig
from arcvq.quantizers.entropy import Entropy
from arcvq.quantizers.fsq import FSQ, FSQConfig
from arcvq.quantizers.gaussian import Gaussian
from arcvq.quantizers.lfq import LFQ, LFQConfig
from arcvq.quantizers.quantized import Quantized, Record
from arcvq.quantizers.registry import QUANTIZERS, build_quantizer, quantizer_class, quantizer_name
from arcvq.quantizers.restart import Restart
from arcvq.quantizers.samp import Arc, Ball, Samp
from arcvq.quantizers.sq import SQ, SQConfig, Temperature
from arcvq.quantizers.vmf import VonMisesFisher, VonMisesFisherConfig
from arcvq.quantizers.vq import VQ, VQConfig

__all__ = [
    "FSQ",
    "LFQ",
    "QUANTIZERS",
    "SQ",
    "VQ",
    "Arc",
    "ArcVQ",
    "ArcVQConfig",
    "Ball",
    "Continuous",
    "ContinuousConfig",
    "Entropy",
    "FSQConfig",
    "Gaussian",
    "LFQConfig",
    "Quantized",
    "Quantizer",
    "QuantizerConfig",
    "Record",
    "Restart",
    "SQConfig",
    "Samp",
    "Temperature",
    "VQConfig",
    "VonMisesFisher",
    "VonMisesFisherConfig",
    "build_quantizer",
    "quantizer_class",
    "quantizer_name",
]
