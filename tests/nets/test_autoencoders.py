"""The interface that every registered autoencoder keeps, seen through a tokenizer."""

import pytest
import torch
from torch import nn

from arcvq.nets import AUTOENCODERS
from arcvq.quantizers import HVQConfig
from arcvq.tokenizers import build_tokenizer


@pytest.mark.parametrize("kind", AUTOENCODERS)
def test_images_shrink_to_tokens_and_grow_back(kind: str) -> None:
    config = AUTOENCODERS.config(kind)(width=16, residual_width=8, latent_dim=8)
    tokenizer = build_tokenizer(3, config, HVQConfig(codebook_size=16)).eval()
    autoencoder, images = tokenizer.autoencoder, torch.rand(2, 3, 16, 32) * 2 - 1
    assert type(autoencoder) is AUTOENCODERS[kind]
    assert (autoencoder.channels, autoencoder.latent_dim, autoencoder.config) == (3, 8, config)
    assert autoencoder.downsampling == config.downsampling
    tokens = tokenizer.encode(images)
    assert tokens.shape == (2, 16 // autoencoder.downsampling, 32 // autoencoder.downsampling)
    assert tokenizer.decode(tokens).shape == images.shape
    assert isinstance(autoencoder.last_layer, nn.Parameter)
    assert any(autoencoder.last_layer is p for p in autoencoder.parameters())
    assert autoencoder.maps_per_pixel >= config.width
    parameters = {p for part in autoencoder.modules_to_compile() for p in part.parameters()}
    assert parameters == set(autoencoder.parameters())
