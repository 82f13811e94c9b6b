"""arcvq: learned discrete image tokens, with codebooks that stay alive."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arcvq import functional
    from arcvq.errors import ArcvqError
    from arcvq.priors import Generator
    from arcvq.quantizers import VQ, Arc, ArcVQ, Ball, Quantized, Quantizer, Samp
    from arcvq.tokenizers import Tokenizer

__version__ = version("arcvq")

# The module of each name. It is imported on first use, so that the command line's help does not wait for torch.
_LOCATIONS = {
    "ArcvqError": "arcvq.errors",
    **dict.fromkeys(("VQ", "Arc", "ArcVQ", "Ball", "Quantized", "Quantizer", "Samp"), "arcvq.quantizers"),
    "Generator": "arcvq.priors",
    "Tokenizer": "arcvq.tokenizers",
}

__all__ = [
    "VQ",
    "Arc",
    "ArcVQ",
    "ArcvqError",
    "Ball",
    "Generator",
    "Quantized",
    "Quantizer",
    "Samp",
    "Tokenizer",
    "__version__",
    "functional",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name == "functional":
        return import_module("arcvq.functional")
    if name in _LOCATIONS:
        return getattr(import_module(_LOCATIONS[name]), name)
    raise AttributeError(f"module 'arcvq' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
