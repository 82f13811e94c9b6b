"""Quantizers: thin modules over `arcvq.functional`. They know nothing of images."""

from arcvq.quantizers.arcvq import ArcVQ, ArcVQConfig
from arcvq.quantizers.base import Quantizer, QuantizerConfig
from arcvq.quantizers.cvq import CVQ, Contrastive, CVQConfig
from arcvq.quantizers.emavq import EMAVQ, EMAVQConfig
from arcvq.quantizers.hvq import HVQ, HVQConfig, Revival
from arcvq.quantizers.quantized import Quantized, Record
from arcvq.quantizers.registry import QUANTIZERS, build_quantizer, quantizer_class, quantizer_name
from arcvq.quantizers.restart import Restart
from arcvq.quantizers.samp import Arc, Ball, Samp
from arcvq.quantizers.simvq import SimVQ, SimVQConfig
from arcvq.quantizers.vq import VQ, Entropy, VQConfig

__all__ = [
    "CVQ",
    "EMAVQ",
    "HVQ",
    "QUANTIZERS",
    "VQ",
    "Arc",
    "ArcVQ",
    "ArcVQConfig",
    "Ball",
    "CVQConfig",
    "Contrastive",
    "EMAVQConfig",
    "Entropy",
    "HVQConfig",
    "Quantized",
    "Quantizer",
    "QuantizerConfig",
    "Record",
    "Restart",
    "Revival",
    "Samp",
    "SimVQ",
    "SimVQConfig",
    "VQConfig",
    "build_quantizer",
    "quantizer_class",
    "quantizer_name",
]
