"""Image files of any size: fitted to a size, kept at their own, and in tiles."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from arcvq import VQ, ArcvqError, Tokenizer
from arcvq.data import read_image, to_unit, write_png
from arcvq.nets import SmallAutoencoder, SmallConfig, VitAutoencoder, VitConfig
from arcvq.tokenizers import Tile
from arcvq.tokenizers.files import decode_tokens, encode_files, reconstruct_files
from arcvq.tokenizers.image_batches import pad_by_reflection
from arcvq.tokenizers.token_file import Tokens

# Heights and widths of the files of the fixture, in the order of their names; two neighbours are equal.
SIZES = [(28, 28), (28, 28), (30, 50), (61, 33), (3, 1)]


def make_tokenizer(image_size: tuple[int, int] | None = (28, 28)) -> Tokenizer:
    """The embedded tokenizer, as if it had been trained on images of this size."""
    tokenizer = Tokenizer.from_pretrained("tiny")
    tokenizer.image_size = image_size
    return tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = torch.Generator().manual_seed(0)
    for i, size in enumerate(SIZES):
        write_png(
            tmp_path / "images" / f"{i}.png", torch.randint(256, (1, *size), dtype=torch.uint8, generator=generator)
        )
    return tmp_path / "images"


def error_of(call: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(ArcvqError) as raised:
        call(*arguments, **options)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def rounded(size: tuple[int, int]) -> tuple[int, int]:
    return -(-size[0] // 4), -(-size[1] // 4)


@pytest.mark.parametrize("image_size", [(28, 28), None])
def test_original_sizes_come_back(image_size: tuple[int, int] | None, folder: Path, tmp_path: Path) -> None:
    tokenizer = make_tokenizer(image_size)
    encode_files(tokenizer, [folder], size=None if image_size is None else "original").save(tmp_path / "tokens.npz")
    tokens = Tokens.load(tmp_path / "tokens.npz")
    assert tokens.tokens.shape == (sum(rows * columns for rows, columns in map(rounded, SIZES)),)
    assert tokens.shapes == [rounded(size) for size in SIZES]
    assert tokens.sizes is not None
    assert tokens.sizes.tolist() == [list(size) for size in SIZES]
    decoded = decode_tokens(tokenizer, tokens, tmp_path / "decoded")
    rebuilt = reconstruct_files(tokenizer, [folder], tmp_path / "rebuilt", size="original")
    assert [read_image(path, 1).shape[1:] for path in decoded] == SIZES
    assert [path.read_bytes() for path in decoded] == [path.read_bytes() for path in rebuilt]


def test_tokens_of_an_original_are_those_of_the_padded_image(folder: Path) -> None:
    tokenizer = make_tokenizer()
    tokens = encode_files(tokenizer, [folder], size="original")
    for i, size in enumerate(SIZES):
        pixels = read_image(folder / f"{i}.png", 1).unsqueeze(0)
        rows, columns = rounded(size)
        padded = np.pad(
            pixels.numpy(), [(0, 0), (0, 0), (0, 4 * rows - size[0]), (0, 4 * columns - size[1])], "reflect"
        )
        assert torch.equal(tokens.batch(i, i + 1), tokenizer.encode(to_unit(torch.from_numpy(padded))))
    assert torch.equal(tokens.batch(0, 2), torch.cat([tokens.batch(0, 1), tokens.batch(1, 2)]))


def test_originals_of_one_size_keep_one_array(tmp_path: Path) -> None:
    for name in ("a", "b"):
        Image.new("L", (64, 32)).save(tmp_path / f"{name}.png")
    tokens = encode_files(make_tokenizer(), [tmp_path], size="original")
    assert (tokens.tokens.shape, tokens.grids, tokens.sizes) == ((2, 8, 16), None, None)
    # One grid, but an image that does not fill it.
    Image.new("L", (63, 30)).save(tmp_path / "b.png")
    tokens = encode_files(make_tokenizer(), [tmp_path], size="original")
    assert (tokens.tokens.shape, tokens.grids) == ((2, 8, 16), None)
    assert tokens.sizes is not None
    assert tokens.sizes.tolist() == [[32, 64], [30, 63]]
    assert [read_image(p, 1).shape[1:] for p in decode_tokens(make_tokenizer(), tokens, tmp_path / "out")] == [
        (32, 64), (30, 63),
    ]  # fmt: skip


@pytest.mark.parametrize(("size", "grid"), [(40, (10, 10)), ((24, 48), (6, 12))])
def test_files_are_fitted_to_the_size_given(size: Any, grid: tuple[int, int], folder: Path, tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    tokens = encode_files(tokenizer, [folder], size=size)
    assert tokens.tokens.shape == (5, *grid)
    assert tokens.sizes is None
    (first, *_) = reconstruct_files(tokenizer, [folder], tmp_path / "out", size=size)
    assert read_image(first, 1).shape[1:] == (4 * grid[0], 4 * grid[1])
    assert "multiples of 4, got 30×40" in error_of(encode_files, tokenizer, [folder], size=(30, 40))


def test_unreadable_originals_are_skipped(folder: Path) -> None:
    (folder / "1.png").write_bytes(b"no image")
    (folder / "3.png").write_bytes((folder / "3.png").read_bytes()[:60])  # its header can be read, its pixels cannot
    skipped: dict[str, str] = {}
    tokens = encode_files(make_tokenizer(), [folder], size="original", skipped=skipped)
    assert (tokens.names, set(skipped)) == (["0.png", "2.png", "4.png"], {"1.png", "3.png"})
    assert "--on-error skip" in error_of(encode_files, make_tokenizer(), [folder], size="original")


def test_rotated_photo_keeps_its_upright_size(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees
    Image.new("L", (40, 20)).save(tmp_path / "photo.jpg", exif=exif)
    assert encode_files(make_tokenizer(), [tmp_path / "photo.jpg"], size="original").tokens.shape == (1, 10, 5)


def test_tiled_files_are_decoded_to_their_reconstructions(folder: Path, tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    seen: list[tuple[int, ...]] = []
    tokenizer.autoencoder.encoder.register_forward_pre_hook(lambda _, inputs: seen.append(tuple(inputs[0].shape)))
    tile = Tile(32, 8)
    tokens = encode_files(tokenizer, [folder], size="original", tile=tile, batch_size=2)
    # Two images that are one tile each; then 1 × 3 and 3 × 2 tiles, two at a time.
    small, wide, tall = (2, 1, 28, 28), [(2, 1, 32, 32), (1, 1, 32, 32)], [(2, 1, 32, 32)] * 3
    assert seen == [small, *wide, *tall, (1, 1, 4, 4)]
    decoded = decode_tokens(tokenizer, tokens, tmp_path / "decoded", tile=tile)
    rebuilt = reconstruct_files(tokenizer, [folder], tmp_path / "rebuilt", size="original", tile=tile)
    assert [path.read_bytes() for path in decoded] == [path.read_bytes() for path in rebuilt]
    assert [read_image(path, 1).shape[1:] for path in decoded] == SIZES
    assert encode_files(tokenizer, [folder], size=64, tile=32).tokens.shape == (5, 16, 16)


def test_vit_refuses_originals(folder: Path) -> None:
    vit = VitAutoencoder(1, VitConfig(width=16, depth=1, heads=1, feedforward=32, latent_dim=8, patch=4))
    tokenizer = Tokenizer(vit, VQ(8, 32, init="normal"), image_size=(16, 16)).eval()
    assert "images of 16×16 only" in error_of(encode_files, tokenizer, [folder], size="original")
    assert "trained on, 16×16, got 32×32" in error_of(encode_files, tokenizer, [folder], size=32)
    tokens = encode_files(tokenizer, [folder], size=48, tile=Tile(16, 4))
    assert tokens.tokens.shape == (5, 12, 12)


@pytest.mark.parametrize(
    ("arrays", "fact"),
    [
        ({"grids": np.array([[2, 3], [1, 1]])}, "do not fill"),
        ({"grids": np.array([[2**31 - 1, 2**31 - 1]] * 4 + [[2**30, 16], [2, 1]])}, "do not fill"),  # 6 modulo 2⁶⁴
        ({"grids": np.array([[2, 3]])}, "has 1 token grids but 2 names"),
        ({"grids": np.array([2, 3])}, "grids must be heights and widths"),
        ({"grids": np.array([[2.0, 3.0]])}, "grids must be heights and widths"),
        ({"grids": np.array([[-2, -3]])}, "grids must be heights and widths"),
        ({"grids": np.array([[1, 2], [2, 2]]), "sizes": np.array([[4, 8]])}, "2 token grids but 1 sizes"),
        ({"grids": np.array([[1, 2], [2, 2]]), "sizes": np.array([[4, 8], [0, 8]])}, "sizes must be heights"),
    ],
)
def test_wrong_grids_or_sizes_are_refused_in_one_line(arrays: dict[str, Any], fact: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "tokens.npz", tokens=np.zeros(6, int), names=np.array(["a", "b"]), **arrays)
    assert fact in error_of(Tokens.load, tmp_path / "tokens.npz")


@pytest.mark.parametrize("size", [(29, 28), (24, 28), (28, 5)])
def test_size_of_another_grid_writes_no_image(size: tuple[int, int], tmp_path: Path) -> None:
    tokens = Tokens(torch.zeros(2, 7, 7, dtype=torch.int64), ["a", "b"], sizes=torch.tensor([(28, 28), size]))
    message = error_of(decode_tokens, make_tokenizer(), tokens, tmp_path / "out")
    assert "28×28" in message
    assert f"{size[0]}×{size[1]}" in message
    assert not (tmp_path / "out").exists()


def test_padding_reflects_narrow_images_again() -> None:
    padded = pad_by_reflection(torch.tensor([[[[1, 2, 3]]]], dtype=torch.uint8), 2, 8)
    assert padded.tolist() == [[[[1, 2, 3, 2, 1, 2, 3, 2]] * 2]]
    same = torch.zeros(1, 1, 4, 4, dtype=torch.uint8)
    assert pad_by_reflection(same, 4, 4) is same


def test_small_network_of_any_size_needs_no_option(tmp_path: Path) -> None:
    """A tokenizer that was saved without an image size keeps each image's own."""
    config = SmallConfig(width=16, residual_width=8, latent_dim=8)
    tokenizer = Tokenizer(SmallAutoencoder(1, config), VQ(8, 32, init="normal")).eval()
    Image.new("L", (64, 32)).save(tmp_path / "wide.png")
    assert encode_files(tokenizer, [tmp_path]).tokens.shape == (1, 8, 16)
    Image.new("L", (32, 32)).save(tmp_path / "square.png")
    assert encode_files(tokenizer, [tmp_path]).shapes == [(8, 8), (8, 16)]
