import io
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from PIL import Image

from arcvq.errors import ArcvqError
from arcvq.metrics import EXACT, PAPER, protocol
from arcvq.metrics.eight_bit import requantize_originals, start_jpeg, start_on_each_image, tile_to_rgb

LEVELS = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)


def test_protocols_are_found_by_name() -> None:
    assert protocol("exact") is EXACT
    assert protocol("paper") is PAPER
    with pytest.raises(ArcvqError, match=r"'fast'.*exact, paper"):
        protocol("fast")


def test_hash_depends_on_every_field() -> None:
    changed = {
        "name": "other",
        "jpeg_quality": 90,
        "rounding": "floor",
        "ssim_window": "gaussian",
        "lpips_network": "alex",
        "fid_resize": 229,
        "fid_interpolation": "torch",
        "revision": 2,
    }
    assert changed.keys() == {field.name for field in fields(EXACT)}
    hashes = {replace(EXACT, **{name: value}).hash for name, value in changed.items()} | {EXACT.hash, PAPER.hash}
    assert len(hashes) == len(changed) + 2
    assert replace(EXACT).hash == EXACT.hash
    # Saved with results: an unchanged protocol must keep its hash.
    assert (EXACT.hash, PAPER.hash) == ("cde314f09505", "b34bfd804f23")


def test_originals_lose_levels_only_with_floor() -> None:
    assert torch.equal(requantize_originals(LEVELS, "round"), LEVELS)
    values = np.arange(256, dtype=np.float32)
    script = np.floor(((values / np.float32(255) - np.float32(0.5)) / np.float32(0.5) + 1) / 2 * np.float32(255))
    floored = requantize_originals(LEVELS, "floor").flatten()
    assert floored.tolist() == script.astype(int).tolist()
    assert (floored.int() < LEVELS.flatten().int()).sum() == 63  # 47 if multiplied by 1/255, as a GPU does


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_originals_lose_same_levels_on_gpu() -> None:
    assert torch.equal(requantize_originals(LEVELS.cuda(), "floor").cpu(), requantize_originals(LEVELS, "floor"))


def test_jpeg_equals_pillow_quality_75() -> None:
    images = torch.randint(0, 256, (3, 3, 20, 24), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    result = start_jpeg(images, 75)()
    for image, copy in zip(images, result):
        buffer = io.BytesIO()
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(buffer, format="JPEG")  # 75 is Pillow's default
        expected = np.array(Image.open(io.BytesIO(buffer.getvalue())))
        assert np.array_equal(copy.permute(1, 2, 0).numpy(), expected)
    assert not torch.equal(result, images)


def test_jpeg_keeps_grey_images_grey() -> None:
    result = start_jpeg(tile_to_rgb(LEVELS), 75)()
    assert torch.equal(result[:, 0], result[:, 1])
    assert torch.equal(result[:, 0], result[:, 2])


def test_empty_batches_stay_empty() -> None:
    empty = torch.empty(0, 3, 8, 8, dtype=torch.uint8)
    assert start_on_each_image(empty, lambda image: image)().shape == (0, 3, 8, 8)
