"""Tiles: the tokens and pixels of the whole image where the network allows it, with memory that does not grow with the image."""

from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from arcvq import ArcvqError, Tokenizer
from arcvq.nets import (
    AutoencoderConfig,
    DfvqganConfig,
    MovqConfig,
    SmallConfig,
    StackedConfig,
    VitConfig,
    VqganConfig,
)
from arcvq.quantizers import (
    HVQ,
    VQ,
    ContinuousConfig,
    FSQConfig,
    HVQConfig,
    QuantizerConfig,
    ResidualVQConfig,
    VQConfig,
)
from arcvq.tokenizers import Tile, build_tokenizer
from arcvq.tokenizers.tiles import TileGrid, blend_weights, spans

SMALL = SmallConfig(width=16, residual_width=8, latent_dim=8)
CONVOLUTIONAL: dict[str, AutoencoderConfig] = {
    "small": SMALL,
    "stacked": StackedConfig(width=16, residual_width=8, residual_blocks=1, latent_dim=8),
    "vqgan": VqganConfig(width=8, multipliers=(1, 2), attention=(2,), groups=4, latent_dim=8),
    "movq": MovqConfig(width=8, multipliers=(1, 2), attention=(2,), groups=4, latent_dim=8),
    "dfvqgan": DfvqganConfig(width=8, multipliers=(1, 2), attention=(2,), groups=4, latent_dim=8),
}
VIT = VitConfig(width=16, depth=1, heads=1, feedforward=32, latent_dim=8, patch=4)
# Half of the margin, where blending begins, is more than a decoder without norms sees to each side: at most 5 positions of 4 pixels.
EXACT = Tile(40 * 4, 40)


def make_tokenizer(
    config: AutoencoderConfig = SMALL, quantizer: QuantizerConfig | None = None, size: tuple[int, int] | None = None
) -> Tokenizer:
    """A tokenizer with random weights whose activations neither vanish nor grow, and codes that latents choose among."""
    torch.manual_seed(0)
    if quantizer is None:
        quantizer = (HVQConfig if isinstance(config, StackedConfig) else VQConfig)(codebook_size=64)
    tokenizer = build_tokenizer(3, config, quantizer, image_size=size).eval()
    for module in tokenizer.modules():
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    codebooks = [module.codebook for module in tokenizer.modules() if isinstance(module, (VQ, HVQ))]
    with torch.no_grad():
        for codebook in codebooks:
            codebook.normal_()
    return tokenizer


def smooth_images(height: int, width: int, count: int = 1) -> Tensor:
    """Images with structure at all scales, in [-1, 1]."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, 3, height // 8 + 1, width // 8 + 1, generator=generator) * 2 - 1
    fine = torch.rand(count, 3, height, width, generator=generator) * 0.2 - 0.1
    resized = torch.nn.functional.interpolate(coarse, size=(height, width), mode="bilinear")
    return (resized + fine).clamp(-1, 1)


def error_of(call: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(ArcvqError) as raised:
        call(*arguments, **options)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(("side", "margin"), [(1, 0), (4, 1), (5, 1), (8, 0), (8, 1), (8, 2), (13, 3), (16, 4)])
def test_tiles_divide_every_length(side: int, margin: int) -> None:
    for length in range(1, 6 * side):
        row = spans(length, side, margin)
        assert (row[0].start, row[0].first) == (0, 0)
        assert (row[-1].stop, row[-1].last) == (length, length)
        assert all(span.stop - span.start == min(side, length) for span in row)
        for before, after in pairwise(row):
            assert before.last == after.first
            assert before.stop - before.last >= margin
            assert after.first - after.start >= margin
        fewest = 1 if length <= side else -(-(length - 2 * margin) // (side - 2 * margin))
        assert len(row) == fewest


@pytest.mark.parametrize(("side", "margin", "factor"), [(4, 1, 1), (4, 1, 4), (8, 2, 3), (13, 3, 2), (8, 0, 4)])
def test_blending_weights_add_up_to_one(side: int, margin: int, factor: int) -> None:
    for length in range(1, 5 * side):
        row = spans(length, side, margin)
        grid = TileGrid(row, row, factor, margin)
        total = torch.zeros(length * factor)
        for span in row:
            first, weights = blend_weights(span, length, grid)
            assert span.start * factor <= first
            assert first + len(weights) <= span.stop * factor
            assert weights.min() > 0
            assert weights.max() <= 1
            total[first : first + len(weights)] += weights
        torch.testing.assert_close(total, torch.ones_like(total))


@pytest.mark.parametrize("kind", ["small", "stacked"])
def test_margin_beyond_receptive_field_gives_whole_image(kind: str) -> None:
    tokenizer = make_tokenizer(CONVOLUTIONAL[kind]).double()  # sums of other orders differ less than the tolerance
    images = smooth_images(236, 164, count=2)
    tokens, copies = tokenizer.encode(images), tokenizer.reconstruct(images)
    assert len(torch.unique(tokens)) > 8
    assert torch.equal(tokenizer.encode(images, tile=EXACT), tokens)
    for found in (tokenizer.decode(tokens, tile=EXACT), tokenizer.reconstruct(images, tile=EXACT, batch_size=3)):
        torch.testing.assert_close(found, copies, rtol=0, atol=1e-6)


def test_default_margin_is_nearly_exact_for_small_network() -> None:
    tokenizer, images = make_tokenizer(), smooth_images(264, 300)
    assert torch.equal(tokenizer.encode(images, tile=256), tokenizer.encode(images))
    copies = tokenizer.reconstruct(images)
    torch.testing.assert_close(tokenizer.reconstruct(images, tile=256), copies, rtol=0, atol=2e-3)


def test_margin_makes_tiles_nearer_to_whole_image() -> None:
    tokenizer, images = make_tokenizer(), smooth_images(128, 192)
    tokens, whole = tokenizer.encode(images), tokenizer.reconstruct(images)
    hard, blended = ((tokenizer.decode(tokens, tile=Tile(64, margin)) - whole).abs().mean() for margin in (0, 16))
    assert 0 < 10 * blended < hard
    changed = [(tokenizer.encode(images, tile=Tile(64, margin)) != tokens).sum() for margin in (0, 16)]
    assert changed[0] > 10
    assert changed[1] == 0


@pytest.mark.parametrize("kind", CONVOLUTIONAL)
@pytest.mark.parametrize("size", [(8, 40), (44, 12), (28, 36)])
def test_any_multiple_of_the_factor_is_encoded_and_decoded(kind: str, size: tuple[int, int]) -> None:
    tokenizer = make_tokenizer(CONVOLUTIONAL[kind], size=(16, 16))
    factor = tokenizer.downsampling
    images = smooth_images(*size)
    tokens = tokenizer.encode(images)
    assert tokens.shape == (1, size[0] // factor, size[1] // factor)
    assert torch.equal(tokenizer.decode(tokens), tokenizer.reconstruct(images))
    assert tokenizer.decode(tokens).shape == images.shape


@pytest.mark.parametrize("kind", CONVOLUTIONAL)
def test_tiles_of_every_network_make_whole_grids(kind: str) -> None:
    tokenizer = make_tokenizer(CONVOLUTIONAL[kind])
    images = smooth_images(80, 52, count=2)
    tile = Tile(32, 8)
    tokens = tokenizer.encode(images, tile=tile)
    assert tokens.shape == tokenizer.encode(images).shape
    copies = tokenizer.reconstruct(images, tile=tile)
    torch.testing.assert_close(tokenizer.decode(tokens, tile=tile), copies)
    assert copies.shape == images.shape
    assert copies.abs().max() <= 1
    assert (tokens == tokenizer.encode(images)).double().mean() > 0.2  # by chance, one in 64 codes


@pytest.mark.parametrize(
    "quantizer",
    [ResidualVQConfig(codebook_size=16, depth=2), FSQConfig(codebook_size=64), ContinuousConfig(latent_dim=5)],
)
def test_tiles_work_with_every_kind_of_quantizer(quantizer: QuantizerConfig) -> None:
    tokenizer, images = make_tokenizer(quantizer=quantizer).double(), smooth_images(180, 60)
    torch.testing.assert_close(
        tokenizer.reconstruct(images, tile=EXACT), tokenizer.reconstruct(images), rtol=0, atol=1e-6
    )
    if tokenizer.quantizer.codebook is None:
        assert "tokens" in error_of(tokenizer.encode, images, tile=EXACT)
    else:
        assert torch.equal(tokenizer.encode(images, tile=EXACT), tokenizer.encode(images))


def test_image_within_one_tile_is_not_cut() -> None:
    tokenizer, images = make_tokenizer(CONVOLUTIONAL["vqgan"]), smooth_images(24, 32, count=2)
    assert torch.equal(tokenizer.reconstruct(images, tile=32), tokenizer.reconstruct(images))
    assert tokenizer.encode(images[:0], tile=16).shape == (0, 12, 16)


def test_largest_tensor_in_autoencoder_is_a_batch_of_tiles() -> None:
    tokenizer = make_tokenizer()
    seen: list[tuple[int, ...]] = []
    for part in (tokenizer.autoencoder.encoder, tokenizer.autoencoder.decoder):
        part.register_forward_pre_hook(lambda _, inputs: seen.append(tuple(inputs[0].shape)))
    for height, width in ((100, 300), (400, 600)):
        tokenizer.reconstruct(smooth_images(height, width), tile=64, batch_size=3)
    assert {shape[1:] for shape in seen} == {(3, 64, 64), (8, 16, 16)}
    assert max(shape[0] for shape in seen) == 3
    seen.clear()
    tokenizer.encode(smooth_images(128, 128), tile=64)  # 9 tiles, fewer than a default batch
    assert seen == [(9, 3, 64, 64)]


def peak_bytes(tokenizer: Tokenizer, side: int) -> int:
    """The most that the allocator holds during a tiled reconstruction, beyond the output and the quantized latents."""
    images = smooth_images(side, side)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        tokenizer.reconstruct(images, tile=32, batch_size=2)
    assert profile.profiler is not None
    held = highest = 0
    changes = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(changes, key=lambda event: event.start_ns()):
        held += event.nbytes()
        highest = max(highest, held)
    return highest - 4 * images.numel() - 4 * 8 * (side // 4) ** 2


def test_peak_memory_does_not_grow_with_the_image() -> None:
    tokenizer = make_tokenizer(replace(SMALL, width=32))
    assert peak_bytes(tokenizer, 384) <= 1.1 * peak_bytes(tokenizer, 96)


def test_precision_reaches_tiles() -> None:
    tokenizer, images = make_tokenizer(), smooth_images(80, 80)
    half = tokenizer.reconstruct(images, tile=64, precision="bf16")
    assert half.dtype == torch.float32
    assert not torch.equal(half, tokenizer.reconstruct(images, tile=64))
    assert tokenizer.bfloat16().reconstruct(images, tile=64).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("tile", "fact"),
    [
        (62, "multiple of 4, got 62"),
        (0, "multiple of 4, got 0"),
        (-8, "multiple of 4, got -8"),
        (16, "at least 32"),
        (Tile(64, 6), "margin must be a multiple of 4, got 6"),
        (Tile(64, -4), "margin must be a multiple of 4, got -4"),
        (Tile(64, 20), "tiles of at least 80, got 64"),
    ],
)
def test_wrong_tile_is_refused_in_one_line(tile: int | Tile, fact: str) -> None:
    tokenizer, images = make_tokenizer(), smooth_images(80, 80)
    tokens = tokenizer.encode(images)
    for call, argument in ((tokenizer.encode, images), (tokenizer.reconstruct, images), (tokenizer.decode, tokens)):
        assert fact in error_of(call, argument, tile=tile)
    assert "batch_size must be at least 1" in error_of(tokenizer.encode, images, tile=64, batch_size=0)
    assert "multiples of 4, got 80×78" in error_of(tokenizer.encode, images[..., :78], tile=64)


def test_vit_takes_its_own_size_and_tiles_of_it() -> None:
    tokenizer = make_tokenizer(VIT, size=(32, 32))
    assert tokenizer.encode(smooth_images(32, 32)).shape == (1, 8, 8)
    images = smooth_images(48, 96)
    assert "trained on, 32×32, got 48×96" in error_of(tokenizer.encode, images)
    assert "trained on, 32×32, got 48×96" in error_of(tokenizer.decode, torch.zeros(1, 12, 24, dtype=torch.int64))
    assert "trained on, 32×32, got tiles of 16×16" in error_of(tokenizer.encode, images, tile=Tile(16, 4))
    assert "got tiles of 16×32" in error_of(tokenizer.reconstruct, images[:, :, :16], tile=32)
    tokens = tokenizer.encode(images, tile=32)
    assert tokens.shape == (1, 12, 24)
    assert tokenizer.decode(tokens, tile=32).shape == images.shape
    # A tokenizer that does not know its images' size takes any.
    assert make_tokenizer(VIT).encode(images).shape == (1, 12, 24)


def test_each_position_has_the_token_of_the_tile_responsible_for_it() -> None:
    tokenizer, images = make_tokenizer(CONVOLUTIONAL["vqgan"]), smooth_images(52, 40)
    tokens = tokenizer.encode(images, tile=Tile(16, 4), batch_size=1)
    rows, columns = spans(26, 8, 2), spans(20, 8, 2)
    for row, column in product(rows, columns):
        alone = tokenizer.encode(images[:, :, 2 * row.start : 2 * row.stop, 2 * column.start : 2 * column.stop])
        inner = alone[
            :, row.first - row.start : row.last - row.start, column.first - column.start : column.last - column.start
        ]
        assert torch.equal(tokens[:, row.first : row.last, column.first : column.last], inner)
