"""Quantizers: thin modules over `arcvq.functional`. They know nothing of images."""

from arcvq.quantizers.arcvq import ArcVQ, ArcVQConfig
from arcvq.quantizers.base import Quantizer, QuantizerConfig
from arcvq.quantizers.quantized import Quantized, Record
from arcvq.quantizers.registry import QUANTIZERS, build_quantizer, quantizer_class, quantizer_name
from arcvq.quantizers.restart import Restart
from arcvq.quantizers.samp import Arc, Ball, Samp
from arcvq.quantizers.vq import VQ, Entropy, VQConfig

__all__ = [
    "QUANTIZERS",
    "VQ",
    "Arc",
    "ArcVQ",
    "ArcVQConfig",
    "Ball",
    "Entropy",
    "Quantized",
    "Quantizer",
    "QuantizerConfig",
    "Record",
    "Restart",
    "Samp",
    "VQConfig",
    "build_quantizer",
    "quantizer_class",
    "quantizer_name",
]
