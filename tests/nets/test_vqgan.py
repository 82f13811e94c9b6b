"""VQGAN's autoencoder: its sizes, and the same network built by diffusers."""

import dataclasses
from typing import Any

import pytest
import torch
from diffusers import VQModel
from diffusers_weights import from_diffusers, perturb
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from arcvq import ArcvqError
from arcvq.nets import VqganAutoencoder, VqganConfig
from arcvq.nets.attention import SelfAttention
from arcvq.nets.blocks import Downsample, ResidualBlock, Upsample

F16 = VqganConfig(multipliers=(1, 1, 2, 2, 4), attention=(16,), latent_dim=256)
SMALL = VqganConfig(width=16, multipliers=(1, 2, 2), attention=(4,), groups=8, latent_dim=4, z_channels=6)


def on_meta(config: VqganConfig) -> VqganAutoencoder:
    with torch.device("meta"):
        return VqganAutoencoder(3, config)


@pytest.mark.parametrize(
    ("config", "codes", "parameters"),
    [
        (F16, 1024, 72_141_699),
        (VqganConfig(), 1024, 67_779_251),
        (VqganConfig(latent_dim=4), 16_384, 67_717_295),
    ],
    ids=["f16", "f8", "latent diffusion's f8"],
)
def test_the_published_models_have_exactly_their_number_of_parameters(
    config: VqganConfig, codes: int, parameters: int
) -> None:
    counted = sum(parameter.numel() for parameter in on_meta(config).parameters())
    assert counted + codes * config.latent_dim == parameters


@pytest.mark.parametrize(("config", "grid"), [(F16, 16), (VqganConfig(), 32)])
def test_large_images_shrink_to_grids(config: VqganConfig, grid: int) -> None:
    with FakeTensorMode():  # shapes without numbers
        autoencoder, images = VqganAutoencoder(3, config), torch.empty(2, 3, 256, 256)
        latents, context = autoencoder.encode(images)
        assert latents.shape == (2, config.latent_dim, grid, grid)
        assert autoencoder.decode(latents, context).images.shape == images.shape


def count(module: nn.Module, kind: type[nn.Module]) -> int:
    return sum(isinstance(each, kind) for each in module.modules())


def test_a_trunk_without_attention_and_with_as_many_blocks_on_both_sides_is_a_configuration() -> None:
    autoencoder = on_meta(dataclasses.replace(F16, attention=(), middle_attention=False, decoder_blocks=2))
    assert count(autoencoder, SelfAttention) == 0
    assert count(autoencoder.encoder, ResidualBlock) == count(autoencoder.decoder, ResidualBlock) == 2 * 5 + 2


def test_attention_follows_the_blocks_at_its_factor_only() -> None:
    autoencoder = on_meta(SMALL)
    assert count(autoencoder.encoder, SelfAttention) == 2 + 1  # and the middle's
    assert count(autoencoder.decoder, SelfAttention) == 3 + 1
    unreached = on_meta(dataclasses.replace(SMALL, attention=(8,)))
    assert count(unreached, SelfAttention) == 2


def test_halving_the_sides_pads_the_right_and_the_bottom_only() -> None:
    layer = Downsample(1)
    nn.init.ones_(layer.conv.weight)
    nn.init.zeros_(layer.conv.bias)
    sums = layer(torch.arange(16.0).view(1, 1, 4, 4))
    assert sums.flatten().tolist() == [45, 39, 66, 50]


def test_one_checkpointed_step_gives_the_same_gradients() -> None:
    torch.manual_seed(0)
    plain = VqganAutoencoder(3, SMALL).double()
    again = VqganAutoencoder(3, dataclasses.replace(SMALL, checkpointing=True)).double()
    again.load_state_dict(plain.state_dict())
    images = torch.randn(1, 3, 8, 8, dtype=torch.float64)
    calls = []
    again.encoder.layers[0].register_forward_pre_hook(lambda *_: calls.append("forward"))
    for autoencoder in (plain, again):
        autoencoder.decode(autoencoder.encode(images)[0]).images.square().sum().backward()
    assert len(calls) == 2  # once more in the backward pass
    for a, b in zip(plain.parameters(), again.parameters()):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 100}, "multiple of autoencoder.groups, got 100 and 32"),
        ({"width": 2**20}, "width must be from 1 to 4096"),
        ({"width": 4096, "multipliers": (1, 4)}, "4096 × 4"),
        ({"multipliers": ()}, r"multipliers must be 1 to 8 numbers .* got \[\]"),
        ({"multipliers": (1,) * 9}, "multipliers"),
        ({"multipliers": (0, 1)}, "multipliers"),
        ({"blocks": 10**6}, "blocks must be from 1 to 32, got 1000000"),
        ({"decoder_blocks": 0}, "decoder_blocks must be from 1"),
        ({"latent_dim": 0}, "latent_dim"),
        ({"z_channels": 10**9}, "z_channels"),
        ({"attention": (32, 12)}, r"powers of two up to 1024, got \[32, 12\]"),
    ],
)
def test_an_impossible_configuration_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArcvqError, match=message):
        VqganConfig(**options)


# ---- the same network built by diffusers ----------------------------------------------------------------------------


def test_weights_of_diffusers_give_its_latents_and_its_images() -> None:
    torch.manual_seed(0)
    theirs = VQModel(
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D", "AttnDownEncoderBlock2D"),
        up_block_types=("AttnUpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D"),
        block_out_channels=(16, 32, 32),
        layers_per_block=2,
        latent_channels=6,
        vq_embed_dim=4,
        norm_num_groups=8,
        num_vq_embeddings=8,
    ).double()
    perturb(theirs)
    ours = VqganAutoencoder(3, SMALL).double()
    ours.load_state_dict(from_diffusers(theirs), strict=True)
    with torch.no_grad():
        images = torch.randn(2, 3, 16, 24, dtype=torch.float64)
        latents = ours.encode(images)[0]
        torch.testing.assert_close(latents, theirs.encode(images).latents, rtol=1e-10, atol=1e-10)
        want = theirs.decode(latents, force_not_quantize=True).sample
        torch.testing.assert_close(ours.decode(latents).images, want, rtol=1e-10, atol=1e-10)
    assert count(ours, Upsample) == count(ours, Downsample) == 2
