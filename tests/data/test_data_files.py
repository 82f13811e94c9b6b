import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from arcvq.data import read_image, write_png
from arcvq.errors import ArcvqError


def random_image(channels: int, height: int = 6, width: int = 9) -> torch.Tensor:
    generator = torch.Generator().manual_seed(channels)
    return torch.randint(0, 256, (channels, height, width), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("channels", [1, 3])
def test_png_round_trip(tmp_path: Path, channels: int) -> None:
    path = tmp_path / "new" / "image.png"
    write_png(path, random_image(channels))
    assert torch.equal(read_image(path, channels), random_image(channels))
    assert [entry.name for entry in path.parent.iterdir()] == ["image.png"]


def test_one_pixel_image_round_trips(tmp_path: Path) -> None:
    write_png(tmp_path / "dot.png", random_image(1, 1, 1))
    assert torch.equal(read_image(tmp_path / "dot.png", 1), random_image(1, 1, 1))


def test_write_png_replaces_file_and_leaves_no_temporary(tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    write_png(path, random_image(3))
    write_png(path, random_image(1))
    assert torch.equal(read_image(path, 1), random_image(1))
    assert len(list(tmp_path.iterdir())) == 1


def test_failed_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ArcvqError, match=r"image\.png: the disk is full"):
        write_png(tmp_path / "image.png", random_image(3))
    assert list(tmp_path.iterdir()) == []


def test_write_png_refuses_wrong_tensors(tmp_path: Path) -> None:
    with pytest.raises(ArcvqError, match=r"takes uint8 \(1 or 3, H, W\), but got torch\.float32"):
        write_png(tmp_path / "image.png", torch.zeros(3, 4, 4))
    with pytest.raises(ArcvqError, match=r"\(2, 4, 4\)"):
        write_png(tmp_path / "image.png", torch.zeros(2, 4, 4, dtype=torch.uint8))


def test_read_image_crops_the_centre(tmp_path: Path) -> None:
    # Left third black, centre white, right third black: the centre square of a 3:1 image is all white.
    wide = torch.zeros(1, 8, 24, dtype=torch.uint8)
    wide[:, :, 8:16] = 255
    write_png(tmp_path / "wide.png", wide)
    assert torch.equal(read_image(tmp_path / "wide.png", 1, 8), torch.full((1, 8, 8), 255, dtype=torch.uint8))
    assert read_image(tmp_path / "wide.png", 3, 5).shape == (3, 5, 5)


@pytest.mark.parametrize("size", [(8, 16), (16, 8), (4, 24)])
def test_read_image_fits_non_square_size(tmp_path: Path, size: tuple[int, int]) -> None:
    # Brightness grows from left to right: the middle column stays in the middle, whatever is cut off.
    write_png(tmp_path / "ramp.png", (torch.arange(33) * 7).to(torch.uint8).expand(1, 20, 33).contiguous())
    pixels = read_image(tmp_path / "ramp.png", 1, size).float()
    assert pixels.shape == (1, *size)
    assert pixels.mean() == pytest.approx(16 * 7, abs=4)


def test_shrinking_is_antialiased(tmp_path: Path) -> None:
    # A fine checkerboard becomes grey; picking pixels without a filter would give black or white.
    board = ((torch.arange(64)[:, None] + torch.arange(64)) % 2 * 255).to(torch.uint8)[None]
    write_png(tmp_path / "board.png", board)
    small = read_image(tmp_path / "board.png", 1, 8).float()
    assert (small - 127.5).abs().max() < 10


def test_palette_alpha_grey_and_16_bit_images_are_converted(tmp_path: Path) -> None:
    rgb = Image.fromarray(random_image(3).permute(1, 2, 0).numpy())
    expected = random_image(3)

    rgb.convert("RGBA").save(tmp_path / "alpha.png")
    assert torch.equal(read_image(tmp_path / "alpha.png", 3), expected)

    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putdata([0, 1])
    palette.save(tmp_path / "palette.png", transparency=bytes([0, 128]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pixels = read_image(tmp_path / "palette.png", 3)
    assert pixels[:, 0, :].T.tolist() == [[10, 20, 30], [40, 50, 60]]

    grey = Image.fromarray(random_image(1)[0].numpy())
    grey.save(tmp_path / "grey.png")
    assert torch.equal(read_image(tmp_path / "grey.png", 3), random_image(1).expand(3, -1, -1))

    deep = np.array([[0, 257, 32896, 65535]], dtype=np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    assert read_image(tmp_path / "deep.png", 1).tolist() == [[[0, 1, 128, 255]]]
    assert read_image(tmp_path / "deep.png", 3)[2].tolist() == [[0, 1, 128, 255]]

    Image.new("1", (2, 2), 1).save(tmp_path / "bits.png")
    assert read_image(tmp_path / "bits.png", 1).unique().tolist() == [255]


def test_exif_rotation_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees
    Image.new("RGB", (20, 10)).save(tmp_path / "rotated.jpg", exif=exif)
    assert read_image(tmp_path / "rotated.jpg", 3).shape == (3, 20, 10)


def test_unreadable_image_error_names_file(tmp_path: Path) -> None:
    with pytest.raises(ArcvqError, match=r"cannot read the image .*absent\.png \(No such file"):
        read_image(tmp_path / "absent.png", 3)
    (tmp_path / "text.png").write_text("not an image")
    with pytest.raises(ArcvqError, match=r"cannot read the image .*text\.png"):
        read_image(tmp_path / "text.png", 3)
    write_png(tmp_path / "whole.png", random_image(3, 64, 64))
    (tmp_path / "half.png").write_bytes((tmp_path / "whole.png").read_bytes()[:4000])
    with pytest.raises(ArcvqError, match=r"cannot read the image .*half\.png") as caught:
        read_image(tmp_path / "half.png", 3)
    assert "\n" not in str(caught.value)
    with pytest.raises(ArcvqError, match="channels is 4; it must be 1 or 3"):
        read_image(tmp_path / "whole.png", 4)
    with pytest.raises(ArcvqError, match="image_size is 0"):
        read_image(tmp_path / "whole.png", 3, 0)
