"""Tokenizers: the trunks, and what puts a quantizer between them."""

from arcvq.tokenizers.small import SmallDecoder, SmallEncoder, SmallTrunkConfig
from arcvq.tokenizers.tokenizer import EMBEDDED, TRUNKS, Tokenizer

__all__ = ["EMBEDDED", "TRUNKS", "SmallDecoder", "SmallEncoder", "SmallTrunkConfig", "Tokenizer"]
