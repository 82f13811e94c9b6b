"""Tokenizers: the trunks, and what puts a quantizer between them."""

from arcvq.tokenizers.hierarchical import HierarchicalTokenizer, HierarchicalTrunkConfig
from arcvq.tokenizers.small import SmallDecoder, SmallEncoder, SmallTrunkConfig
from arcvq.tokenizers.tokenizer import EMBEDDED, TRUNKS, Tokenizer, tokenizer_class

__all__ = [
    "EMBEDDED",
    "TRUNKS",
    "HierarchicalTokenizer",
    "HierarchicalTrunkConfig",
    "SmallDecoder",
    "SmallEncoder",
    "SmallTrunkConfig",
    "Tokenizer",
    "tokenizer_class",
]
