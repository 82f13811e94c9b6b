"""--size, --tile and --margin of encode, decode and reconstruct."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

Arcvq = Callable[..., Any]
SIZES = {"photo.png": (90, 61), "tall.png": (40, 130)}  # width, height


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (tmp_path / "photos").mkdir()
    for name, (width, height) in SIZES.items():
        pixels = np.random.default_rng(0).integers(256, size=(height, width), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / name)
    return tmp_path / "photos"


@pytest.mark.parametrize("tile", [(), ("--tile", "64"), ("--tile", "64", "--margin", "16", "--batch-size", "2")])
def test_originals_are_encoded_decoded_and_reconstructed(
    tile: tuple[str, ...], arcvq: Arcvq, photos: Path, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens.npz"
    encoded = arcvq("encode", "tiny", photos, "--size", "original", "--out", tokens, *tile)
    assert (encoded.code, encoded.errors) == (0, "")
    assert encoded.output == f"{tokens}: 2 images as {16 * 23 + 33 * 10} tokens in all\n"
    assert arcvq("decode", "tiny", tokens, "--out", tmp_path / "decoded", *tile).code == 0
    assert arcvq("reconstruct", "tiny", photos, "--size", "original", "--out", tmp_path / "rebuilt", *tile).code == 0
    for name, size in SIZES.items():
        assert Image.open(tmp_path / "decoded" / name).size == size
        assert (tmp_path / "decoded" / name).read_bytes() == (tmp_path / "rebuilt" / name).read_bytes()


def test_json_has_the_grid_that_all_images_share(arcvq: Arcvq, photos: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.npz"
    for size, grid in (("original", None), ("48", [12, 12]), ("64x32", [16, 8])):
        result = arcvq("encode", "tiny", photos, "--size", size, "--out", tokens, "--json")
        assert json.loads(result.output) == {"file": str(tokens), "images": 2, "grid": grid, "skipped": {}}


@pytest.mark.parametrize("command", ["encode", "reconstruct", "decode"])
@pytest.mark.parametrize(
    ("options", "fact"),
    [
        (("--tile", "62"), "multiple of 4, got 62"),
        (("--tile", "16"), "at least 32"),
        (("--tile", "64", "--margin", "18"), "multiple of 4, got 18"),
        (("--tile", "64", "--margin", "32"), "tiles of at least 128, got 64"),
        (("--tile", "0"), "whole number above 0"),
        (("--margin", "8"), "give --tile too"),
        (("--size", "large"), "height and width as HxW, or original, got 'large'"),
        (("--size", "30x"), "got '30x'"),
        (("--size", "30x40"), "multiples of 4, got 30×40"),
        (("--size", "0"), "at least 1"),
    ],
)
def test_wrong_size_or_tile_is_one_line_and_writes_nothing(
    command: str, options: tuple[str, ...], fact: str, arcvq: Arcvq, photos: Path, tmp_path: Path
) -> None:
    source: Path = photos
    if command == "decode":
        source = tmp_path / "tokens.npz"
        np.savez(source, tokens=np.zeros((1, 30, 30), np.uint16))
        fact = "unexpected argument '--size'" if "--size" in options else fact
    result = arcvq(command, "tiny", source, "--out", tmp_path / "out.npz", *options)
    assert (result.code, result.output) == (2, "")
    assert result.errors.count("\n") == 1
    assert fact in result.errors
    assert not (tmp_path / "out.npz").exists()
