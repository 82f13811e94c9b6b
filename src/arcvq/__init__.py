"""arcvq: learned discrete image tokens, with codebooks that stay alive."""

from importlib.metadata import version

from arcvq import functional
from arcvq.errors import ArcvqError
from arcvq.quantizers import VQ, Arc, ArcVQ, Ball, Quantized, Quantizer, Samp
from arcvq.tokenizers import Tokenizer

__version__ = version("arcvq")

__all__ = [
    "VQ",
    "Arc",
    "ArcVQ",
    "ArcvqError",
    "Ball",
    "Quantized",
    "Quantizer",
    "Samp",
    "Tokenizer",
    "__version__",
    "functional",
]
