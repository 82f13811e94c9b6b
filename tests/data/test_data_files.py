import struct
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from arcvq.data import read_image, write_png
from arcvq.data.files import UnreadableImage, image_header
from arcvq.errors import ArcvqError


def random_image(channels: int, height: int = 6, width: int = 9) -> torch.Tensor:
    generator = torch.Generator().manual_seed(channels)
    return torch.randint(0, 256, (channels, height, width), generator=generator, dtype=torch.uint8)


def write_tiff(path: Path, pixels: np.ndarray, *, bits: int | None = None, white_is_zero: bool = False) -> None:
    """A greyscale TIFF of any kind of number, which Pillow does not write."""
    height, width = pixels.shape
    tags = {
        256: width,
        257: height,
        258: bits or 8 * pixels.itemsize,
        259: 1,  # not compressed
        262: 0 if white_is_zero else 1,
        273: 8 + 2 + 10 * 12 + 4,  # where the pixels begin
        277: 1,
        278: height,
        279: pixels.nbytes,
        339: {"u": 1, "i": 2, "f": 3}[pixels.dtype.kind],
    }
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    path.write_bytes(struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + entries + bytes(4) + pixels.tobytes())


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


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int16])
def test_pixels_without_a_range_are_refused(tmp_path: Path, dtype: type) -> None:
    path = tmp_path / "depth.tif"
    write_tiff(path, np.linspace(0, 1000, 48).reshape(6, 8).astype(dtype))
    for read in (lambda: read_image(path, 1), lambda: image_header(path)):
        with pytest.raises(UnreadableImage, match=r"depth\.tif \(signed or 32-bit pixels; convert to 8 bits\)"):
            read()


def test_16_bit_tiff_is_scaled(tmp_path: Path) -> None:
    deep = np.array([[0, 257, 32896, 65535]], dtype=np.uint16)
    write_tiff(tmp_path / "deep.tif", deep)
    assert read_image(tmp_path / "deep.tif", 1).tolist() == [[[0, 1, 128, 255]]]
    write_tiff(tmp_path / "inverted.tif", deep, white_is_zero=True)
    with pytest.raises(UnreadableImage, match="16-bit pixels whose 0 is white"):
        read_image(tmp_path / "inverted.tif", 1)
    write_tiff(tmp_path / "twelve.tif", np.zeros((2, 4), dtype=np.uint16), bits=12)
    with pytest.raises(UnreadableImage, match="12-bit pixels; convert to 8 bits"):
        read_image(tmp_path / "twelve.tif", 1)


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
