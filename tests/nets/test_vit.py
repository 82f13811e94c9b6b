"""ViT-VQGAN's autoencoder: patches, positions, the likelihood's two outputs."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import nn

from arcvq import ArcvqError
from arcvq.nets import VitAutoencoder, VitConfig
from arcvq.nets.vit import Attention, from_patches, sincos_positions, to_patches

SMALL = VitConfig(patch=4, width=16, depth=1, heads=2, feedforward=32, latent_dim=8)


def test_patches_put_back_are_the_image() -> None:
    images = torch.arange(2 * 3 * 8 * 12.0).view(2, 3, 8, 12)
    patches = to_patches(images, 4)
    assert patches.shape == (2, 2, 3, 48)
    assert torch.equal(patches[1, 1, 2].view(3, 4, 4), images[1, :, 4:8, 8:12])
    assert torch.equal(from_patches(patches, 4), images)


def test_identity_layers_give_the_image_back() -> None:
    config = VitConfig(patch=2, width=4, depth=1, heads=1, feedforward=4, latent_dim=4)
    autoencoder = VitAutoencoder(1, config)
    for half in (autoencoder.encoder, autoencoder.decoder):
        half.blocks, half.norm = nn.Identity(), nn.Identity()
        for linear in (half.linear_in, half.linear_out):
            nn.init.eye_(linear.weight)
        nn.init.zeros_(half.linear_in.bias)
    images = torch.randn(2, 1, 4, 6)
    positions = from_patches(sincos_positions(2, 3, 4, images).unsqueeze(0), 2)
    want = images + 2 * positions  # each half adds them once
    torch.testing.assert_close(autoencoder.decode(autoencoder.encode(images)[0]).images, want)


def test_positions_are_sines_and_cosines_of_column_and_row() -> None:
    grid = sincos_positions(5, 7, 8, torch.empty(0, dtype=torch.float64))
    row, column = 3, 6
    want = [f(place * w) for place in (column, row) for f in (math.sin, math.cos) for w in (1, 0.01)]
    assert grid.shape == (5, 7, 8)
    assert grid[row, column].tolist() == pytest.approx(want, abs=1e-12)
    assert torch.equal(sincos_positions(9, 8, 8, grid)[:5, :7], grid)  # a larger grid begins with the same


def test_attention_is_the_softmax_of_scaled_products() -> None:
    torch.manual_seed(0)
    attention, x = Attention(16, 2).double(), torch.randn(2, 5, 16, dtype=torch.float64)
    q, k, v = (part.view(2, 5, 2, 64).transpose(1, 2) for part in attention.qkv(x).chunk(3, dim=2))
    heads = (q @ k.transpose(2, 3) / 8).softmax(dim=3) @ v
    want = attention.out(heads.transpose(1, 2).reshape(2, 5, 128))
    torch.testing.assert_close(attention(x), want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("width", "depth", "heads", "feedforward"),
    [(512, 8, 8, 2048), (768, 12, 12, 3072), (1280, 32, 16, 5120)],
    ids=["small", "base", "large"],
)
def test_number_of_parameters_follows_from_the_sizes(width: int, depth: int, heads: int, feedforward: int) -> None:
    sizes = {"width": width, "depth": depth, "heads": heads, "feedforward": feedforward}
    with torch.device("meta"):
        autoencoder = VitAutoencoder(3, VitConfig(**sizes))
        small_encoder = VitAutoencoder(3, VitConfig(**{f"decoder_{name}": size for name, size in sizes.items()}))
    attention, hidden = 4 * 64 * heads * width + width, 2 * width * feedforward + feedforward + width
    trunk = depth * (attention + hidden + 4 * width) + 2 * width  # two norms a block, and one behind them

    def count(module: nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    assert count(autoencoder.encoder) == 192 * width + width + trunk + 32 * width + 32
    assert count(autoencoder.decoder) == 32 * width + width + trunk + 192 * width + 192
    assert count(small_encoder.decoder) == count(autoencoder.decoder)


def test_a_likelihood_has_a_location_and_a_scale_for_each_pixel() -> None:
    torch.manual_seed(0)
    autoencoder = VitAutoencoder(3, dataclasses.replace(SMALL, likelihood=True))
    decoded = autoencoder.decode(torch.randn(2, 8, 2, 3))
    assert set(decoded.extra) == {"location", "log_scale"}
    assert decoded.images.shape == decoded.extra["location"].shape == decoded.extra["log_scale"].shape == (2, 3, 8, 12)
    # A pixel from 0 to 1 is squeezed into 0.1 to 0.9; its logit is the location.
    squeezed = 0.8 * (decoded.images + 1) / 2 + 0.1
    torch.testing.assert_close(squeezed.logit(), decoded.extra["location"], rtol=1e-4, atol=1e-5)
    assert not VitAutoencoder(3, SMALL).decode(torch.randn(2, 8, 2, 3)).extra


def test_decoder_may_have_other_sizes() -> None:
    autoencoder = VitAutoencoder(3, dataclasses.replace(SMALL, decoder_width=24, decoder_depth=2, decoder_heads=1))
    assert (len(autoencoder.encoder.blocks), len(autoencoder.decoder.blocks)) == (1, 2)
    assert autoencoder.decoder.linear_in.weight.shape == (24, 8)
    assert autoencoder.decode(autoencoder.encode(torch.randn(1, 3, 8, 8))[0]).images.shape == (1, 3, 8, 8)


def test_checkpointed_step_gives_the_same_gradients() -> None:
    torch.manual_seed(0)
    config = dataclasses.replace(SMALL, depth=2)
    plain = VitAutoencoder(3, config).double()
    again = VitAutoencoder(3, dataclasses.replace(config, checkpointing=True)).double()
    again.load_state_dict(plain.state_dict())
    images = torch.randn(1, 3, 8, 8, dtype=torch.float64)
    calls = []
    for half in (again.encoder, again.decoder):
        half.blocks[0].register_forward_pre_hook(lambda *_: calls.append("forward"))
    for autoencoder in (plain, again):
        autoencoder.decode(autoencoder.encode(images)[0]).images.square().sum().backward()
    assert len(calls) == 4  # in each half once more in the backward pass
    for a, b in zip(plain.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 10}, "width must be a multiple of 4, which positions need, got 10"),
        ({"decoder_width": 6}, "decoder_width must be a multiple of 4"),
        ({"depth": 10**6}, "depth must be from 1 to 64, got 1000000"),
        ({"decoder_heads": 0}, "decoder_heads must be from 1 to 64"),
        ({"patch": 0}, "patch"),
        ({"feedforward": 2**30}, "feedforward"),
    ],
)
def test_an_impossible_configuration_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArcvqError, match=message):
        VitConfig(**options)
