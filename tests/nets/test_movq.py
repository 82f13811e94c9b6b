"""MoVQ's decoder: norms that the quantized latents scale and shift."""

import dataclasses
from typing import Any

import pytest
import torch
from diffusers import VQModel
from diffusers_weights import from_diffusers, perturb
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from arcvq import ArcvqError
from arcvq.nets import MovqAutoencoder, MovqConfig, VqganAutoencoder, VqganConfig
from arcvq.nets.blocks import Activation
from arcvq.nets.movq import ModulatedNorm
from arcvq.nets.norm import GroupNorm

SIZES: dict[str, Any] = {"width": 16, "multipliers": (1, 2, 2), "attention": (4,), "groups": 8, "latent_dim": 4}
SMALL = MovqConfig(**SIZES)


def random_norm(activation: Activation = "none", **options: Any) -> ModulatedNorm:
    torch.manual_seed(0)
    norm = ModulatedNorm(16, activation, dataclasses.replace(SMALL, **options)).double()
    perturb(norm)
    return norm


def some_features() -> Tensor:
    return torch.randn(2, 16, 8, 12, dtype=torch.float64)


def set_modulation(module: nn.Module, scale: float, shift: float) -> None:
    for norm in module.modules():
        if isinstance(norm, ModulatedNorm):
            for conv, bias in ((norm.gamma, scale), (norm.beta, shift)):
                nn.init.zeros_(conv.weight)
                nn.init.constant_(conv.bias, bias)


def test_scale_one_and_shift_zero_give_vqgans_decoder() -> None:
    torch.manual_seed(0)
    plain = VqganAutoencoder(3, VqganConfig(**SIZES)).double()
    perturb(plain)
    modulated = MovqAutoencoder(3, SMALL).double()
    set_modulation(modulated, 1.0, 0.0)
    weights = modulated.state_dict()
    inner = {name.replace(".norm.", ".") if name not in plain.state_dict() else name: name for name in weights}
    weights.update({inner[name]: value for name, value in plain.state_dict().items()})
    modulated.load_state_dict(weights)
    images = torch.randn(2, 3, 8, 16, dtype=torch.float64)
    latents = plain.encode(images)[0]
    assert torch.equal(modulated.encode(images)[0], latents)
    torch.testing.assert_close(modulated.decode(latents).images, plain.decode(latents).images, rtol=1e-12, atol=1e-12)
    set_modulation(modulated, 1.0, 0.1)
    assert not torch.allclose(modulated.decode(latents).images, plain.decode(latents).images)


def test_constant_latents_give_an_affine_map_of_each_channel() -> None:
    norm, x = random_norm(), some_features()
    constant = torch.randn(2, 4, 1, 1, dtype=torch.float64)
    scale, shift = norm.gamma(constant), norm.beta(constant)  # (2, 16, 1, 1)
    want = norm.norm(x) * scale + shift
    torch.testing.assert_close(norm(x, constant.expand(-1, -1, 2, 3)), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("condition_conv", [False, True])
def test_norm_is_that_of_the_definition(condition_conv: bool, activation: Activation) -> None:
    norm, x = random_norm(activation, condition_conv=condition_conv), some_features()
    quantized = torch.randn(2, 4, 2, 3, dtype=torch.float64)
    resized = quantized.repeat_interleave(4, dim=2).repeat_interleave(4, dim=3)
    if norm.conv is not None:
        resized = norm.conv(resized)
    plain = nn.functional.group_norm(x, 8, norm.norm.weight, norm.norm.bias, 1e-6)
    want = plain * norm.gamma(resized) + norm.beta(resized)
    want = want * want.sigmoid() if activation == "silu" else want
    torch.testing.assert_close(norm(x, quantized), want, rtol=1e-12, atol=1e-12)


def test_every_norm_of_the_decoder_is_modulated_and_none_of_the_encoder() -> None:
    autoencoder = MovqAutoencoder(3, SMALL)

    def count(module: nn.Module, kind: type[nn.Module]) -> int:
        return sum(isinstance(each, kind) for each in module.modules())

    assert count(autoencoder.encoder, ModulatedNorm) == 0
    assert count(autoencoder.decoder, ModulatedNorm) == count(autoencoder.decoder, GroupNorm) == 2 * (9 + 2) + 4 + 1


@pytest.mark.parametrize(
    ("config", "grid"), [(MovqConfig(), 16), (MovqConfig(multipliers=(1, 2, 2, 4), attention=(8,), latent_dim=4), 32)]
)
def test_large_images_shrink_to_grids(config: MovqConfig, grid: int) -> None:
    with FakeTensorMode():  # shapes without numbers
        autoencoder, images = MovqAutoencoder(3, config), torch.empty(2, 3, 256, 256)
        latents, context = autoencoder.encode(images)
        assert latents.shape == (2, config.latent_dim, grid, grid)
        assert autoencoder.decode(latents, context).images.shape == images.shape


def test_weights_of_diffusers_give_its_images() -> None:
    torch.manual_seed(0)
    theirs = VQModel(
        down_block_types=("DownEncoderBlock2D", "AttnDownEncoderBlock2D"),
        up_block_types=("AttnUpDecoderBlock2D", "UpDecoderBlock2D"),
        block_out_channels=(32, 64),
        layers_per_block=1,
        latent_channels=4,
        num_vq_embeddings=8,
        norm_type="spatial",
    ).double()
    perturb(theirs)
    ours = MovqAutoencoder(3, MovqConfig(width=32, multipliers=(1, 2), attention=(2,), blocks=1, latent_dim=4)).double()
    ours.load_state_dict(from_diffusers(theirs), strict=True)
    with torch.no_grad():
        latents = torch.randn(2, 4, 4, 6, dtype=torch.float64)
        want = theirs.decode(latents, force_not_quantize=True).sample
        torch.testing.assert_close(ours.decode(latents).images, want, rtol=1e-10, atol=1e-10)


def test_an_impossible_configuration_is_refused() -> None:
    with pytest.raises(ArcvqError, match=r"autoencoder\.blocks must be from 1 to 32"):
        MovqConfig(blocks=1000)
