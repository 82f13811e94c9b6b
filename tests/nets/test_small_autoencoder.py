"""The small autoencoder: its size, its shapes, its skip path."""

import pytest
import torch
from torch import nn

from arcvq import VQ, ArcvqError, Tokenizer
from arcvq.nets import SmallAutoencoder, SmallConfig
from arcvq.nets.small import ResidualBlock


def paper_tokenizer(channels: int) -> Tokenizer:
    return Tokenizer(SmallAutoencoder(channels, SmallConfig()), VQ(64, 512))


@pytest.mark.parametrize(("channels", "parameters"), [(1, 691_393), (3, 695_491)])
def test_the_papers_models_have_exactly_its_number_of_parameters(channels: int, parameters: int) -> None:
    assert sum(parameter.numel() for parameter in paper_tokenizer(channels).parameters()) == parameters


@pytest.mark.parametrize(("channels", "side", "grid"), [(1, 28, 7), (3, 32, 8)])
def test_images_shrink_fourfold_to_latents_and_grow_back(channels: int, side: int, grid: int) -> None:
    tokenizer = paper_tokenizer(channels).eval()
    images = torch.rand(2, channels, side, side) * 2 - 1
    assert tokenizer.latents(images).shape == (2, 64, grid, grid)
    assert tokenizer.encode(images).shape == (2, grid, grid)
    assert tokenizer.encode(images).dtype == torch.int64
    assert tokenizer.decode(tokenizer.encode(images)).shape == images.shape
    decoded, quantized = tokenizer(images)
    assert decoded.images.shape == images.shape
    assert quantized.tokens.shape == (2, grid, grid)


def test_sides_need_not_be_equal() -> None:
    tokenizer = paper_tokenizer(1).eval()
    assert tokenizer.encode(torch.zeros(1, 1, 12, 20)).shape == (1, 3, 5)


def block_without_update(skip_activated: bool) -> ResidualBlock:
    block = ResidualBlock(2, 1, skip_activated)
    nn.init.zeros_(block.conv1.weight)
    nn.init.zeros_(block.conv1.bias)
    return block


def test_the_skip_path_carries_the_activated_input_or_the_input_itself() -> None:
    features = torch.tensor([-1.0, 2.0]).view(1, 2, 1, 1)
    assert torch.equal(block_without_update(True)(features).flatten(), torch.tensor([0.0, 2.0]))
    assert torch.equal(block_without_update(False)(features).flatten(), torch.tensor([-1.0, 2.0]))


def test_a_residual_block_leaves_its_input_alone() -> None:
    features = torch.tensor([-1.0, 2.0]).view(1, 2, 1, 1)
    ResidualBlock(2, 1, True)(features)
    assert torch.equal(features.flatten(), torch.tensor([-1.0, 2.0]))


def test_the_configuration_reaches_every_block() -> None:
    for skip_activated in (True, False):
        config = SmallConfig(width=8, residual_blocks=3, latent_dim=4, skip_activated=skip_activated)
        blocks = [m for m in Tokenizer(SmallAutoencoder(1, config), VQ(4, 8)).modules() if isinstance(m, ResidualBlock)]
        assert len(blocks) == 6
        assert {block.skip_activated for block in blocks} == {skip_activated}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 7}, "width .* 7"),
        ({"latent_dim": 0}, "latent_dim"),
        ({"residual_blocks": -1}, "residual_blocks .* -1"),
        ({"residual_blocks": 10**7}, "residual_blocks .* 10000000"),
    ],
)
def test_an_impossible_configuration_is_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ArcvqError, match=message):
        SmallConfig(**options)


def test_a_quantizer_of_another_width_and_images_without_channels_are_refused() -> None:
    with pytest.raises(ArcvqError, match="takes latents of width 32, but the autoencoder makes latents of width 64"):
        Tokenizer(SmallAutoencoder(1, SmallConfig()), VQ(32, 8))
    with pytest.raises(ArcvqError, match="channels must be at least 1, got 0"):
        Tokenizer(SmallAutoencoder(0, SmallConfig()), VQ(64, 8))
