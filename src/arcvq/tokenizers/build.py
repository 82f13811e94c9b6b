"""Configurations → a fresh tokenizer."""

from __future__ import annotations

from typing import Any

from arcvq.nets import AUTOENCODERS, AutoencoderConfig, StackedConfig
from arcvq.quantizers import QUANTIZERS, QuantizerConfig
from arcvq.tokenizers.stacked import StackedTokenizer
from arcvq.tokenizers.tokenizer import Tokenizer


def build_tokenizer(
    channels: int, autoencoder: AutoencoderConfig, quantizer: QuantizerConfig, **about: Any
) -> Tokenizer:
    """`about`: image_size and system, which a tokenizer carries along."""
    # The quantizer first: the order decides which random numbers each part begins with.
    built = QUANTIZERS.build(quantizer, autoencoder.latent_dim)
    cls = StackedTokenizer if isinstance(autoencoder, StackedConfig) else Tokenizer
    return cls(AUTOENCODERS.build(autoencoder, channels), built, **about)
