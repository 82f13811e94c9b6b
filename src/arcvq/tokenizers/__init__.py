"""Tokenizers: an autoencoder and a quantizer. Images ↔ tokens."""

from arcvq.tokenizers.build import build_tokenizer
from arcvq.tokenizers.locations import EMBEDDED
from arcvq.tokenizers.reduce import reduce_codebook
from arcvq.tokenizers.stacked import StackedTokenizer
from arcvq.tokenizers.tiles import Tile
from arcvq.tokenizers.tokenizer import Tokenizer

__all__ = ["EMBEDDED", "StackedTokenizer", "Tile", "Tokenizer", "build_tokenizer", "reduce_codebook"]
