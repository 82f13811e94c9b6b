"""Builds an untrained tokenizer from configurations."""

from __future__ import annotations

from typing import Any

from arcvq.nets import AUTOENCODERS, AutoencoderConfig, StackedConfig
from arcvq.quantizers import QUANTIZERS, QuantizerConfig
from arcvq.tokenizers.stacked import StackedTokenizer
from arcvq.tokenizers.tokenizer import Tokenizer


def build_tokenizer(
    channels: int, autoencoder: AutoencoderConfig, quantizer: QuantizerConfig, **about: Any
) -> Tokenizer:
    """Build an untrained tokenizer. `about` may give image_size and system, which are saved with it."""
    # The quantizer is built first: the order decides the random numbers of each module.
    built = QUANTIZERS.build(quantizer, autoencoder.latent_dim)
    cls = StackedTokenizer if isinstance(autoencoder, StackedConfig) else Tokenizer
    return cls(AUTOENCODERS.build(autoencoder, channels), built, **about)
