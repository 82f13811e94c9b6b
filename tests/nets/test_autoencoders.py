"""The interface that every registered autoencoder keeps, seen through a tokenizer."""

import math
from pathlib import Path

import pytest
import torch
from every_autoencoder import SMALL
from torch import Tensor, nn

from arcvq import Tokenizer
from arcvq.nets import AUTOENCODERS, Autoencoder
from arcvq.quantizers import HVQConfig
from arcvq.tokenizers import build_tokenizer


def small_tokenizer(kind: str) -> Tokenizer:
    torch.manual_seed(0)
    return build_tokenizer(3, SMALL[kind], HVQConfig(codebook_size=16))


def some_images() -> Tensor:
    return torch.rand(2, 3, 16, 32) * 2 - 1


def autoencoder_and_inputs(kind: str) -> tuple[Autoencoder, Tensor]:
    """An autoencoder, and what it takes: images, or at the top of a stack the latents of the level below."""
    autoencoder = small_tokenizer(kind).autoencoder
    return autoencoder, torch.randn(2, 8, 8, 16) if kind == "stacked" else some_images()


def reconstruct(autoencoder: Autoencoder, inputs: Tensor) -> Tensor:
    latents, context = autoencoder.encode(inputs)
    return autoencoder.decode(latents, context).images


@pytest.mark.parametrize("kind", AUTOENCODERS)
def test_images_shrink_to_tokens_and_grow_back(kind: str) -> None:
    tokenizer, images, config = small_tokenizer(kind).eval(), some_images(), SMALL[kind]
    autoencoder = tokenizer.autoencoder
    assert type(autoencoder) is AUTOENCODERS[kind]
    assert (autoencoder.channels, autoencoder.latent_dim, autoencoder.config) == (3, 8, config)
    assert autoencoder.downsampling == config.downsampling
    tokens = tokenizer.encode(images)
    assert tokens.shape == (2, 16 // autoencoder.downsampling, 32 // autoencoder.downsampling)
    assert tokenizer.decode(tokens).shape == images.shape
    assert isinstance(autoencoder.last_layer, nn.Parameter)
    assert any(autoencoder.last_layer is p for p in autoencoder.parameters())
    parameters = {p for part in autoencoder.modules_to_compile() for p in part.parameters()}
    assert parameters == set(autoencoder.parameters())


@pytest.mark.parametrize("kind", AUTOENCODERS)
def test_saved_and_loaded_gives_the_same_images(kind: str, tmp_path: Path) -> None:
    tokenizer, images = small_tokenizer(kind).eval(), some_images()
    loaded = Tokenizer.from_pretrained(tokenizer.save_pretrained(tmp_path / "model"))
    assert loaded.autoencoder.config == SMALL[kind]
    assert torch.equal(loaded.reconstruct(images), tokenizer.reconstruct(images))


@pytest.mark.parametrize("kind", AUTOENCODERS)
def test_maps_per_pixel_covers_the_largest_activation(kind: str) -> None:
    tokenizer, images, sizes = small_tokenizer(kind).eval(), some_images(), []
    for module in tokenizer.modules():
        if not list(module.children()):
            module.register_forward_hook(lambda _, inputs, output: sizes.append(output.numel()))
    tokenizer.to_images(tokenizer.latents(images))
    assert tokenizer.autoencoder.maps_per_pixel >= math.ceil(max(sizes) / (2 * 16 * 32))


@pytest.mark.parametrize("kind", AUTOENCODERS)
def test_gradients_reach_every_parameter_in_float64(kind: str) -> None:
    autoencoder, inputs = autoencoder_and_inputs(kind)
    output = reconstruct(autoencoder.double(), inputs.double())
    assert output.dtype == torch.float64
    (output * torch.randn_like(output)).sum().backward()
    for name, parameter in autoencoder.named_parameters():
        if not name.endswith(".k.bias"):  # the same number added to all scores of a softmax
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 1e-8, name


@pytest.mark.parametrize("kind", AUTOENCODERS)
def test_last_layer_is_the_one_that_makes_the_output(kind: str) -> None:
    autoencoder, inputs = autoencoder_and_inputs(kind)
    before = reconstruct(autoencoder, inputs)
    with torch.no_grad():
        autoencoder.last_layer.zero_()
    assert reconstruct(autoencoder, inputs).std(dim=0).max() < 1e-6 < before.std(dim=0).max()


@pytest.mark.parametrize("kind", AUTOENCODERS)
def test_bfloat16_autocast_changes_little(kind: str) -> None:
    autoencoder, inputs = autoencoder_and_inputs(kind)
    want = reconstruct(autoencoder, inputs)
    with torch.autocast("cpu", torch.bfloat16):
        got = reconstruct(autoencoder, inputs)
    assert (got - want).abs().mean() < 0.05 * want.std()


@pytest.mark.parametrize("kind", AUTOENCODERS)
def test_channels_last_changes_nothing_but_the_layout(kind: str) -> None:
    autoencoder, inputs = autoencoder_and_inputs(kind)
    want = reconstruct(autoencoder, inputs)
    layouts = []
    for module in autoencoder.to(memory_format=torch.channels_last).modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_pre_hook(
                lambda _, inputs: layouts.append(inputs[0].is_contiguous(memory_format=torch.channels_last))
            )
    torch.testing.assert_close(reconstruct(autoencoder, inputs.to(memory_format=torch.channels_last)), want)
    assert all(layouts)  # nothing on the way puts the channels first again
