"""Read an image file to a uint8 tensor, and write one as PNG."""

import io
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps, TiffImagePlugin, UnidentifiedImageError
from torch import Tensor

from arcvq.data.images import Size, height_and_width
from arcvq.errors import ArcvqError
from arcvq.storage import write_bytes

# The exceptions of Pillow's decoders for damaged files.
DECODE_ERRORS = (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError)
MODES = {1: "L", 3: "RGB"}


class UnreadableImage(ArcvqError):
    """An image file that cannot be read, with the reason."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(f"cannot read the image {path} ({reason}); repair or remove the file")
        self.path, self.reason = Path(path), reason


def read_image(
    path: Path | str, channels: int, size: Size | None = None, content: bytes | None = None, *, whole: bool = False
) -> Tensor:
    """Decode an image file to uint8 (C, H, W). With `size`, it is resized to cover that size and cropped to the centre, or with
    `whole` not cropped.

    `content` is the file's content if it lies elsewhere, in a shard for example; `path` then only names it in errors.
    """
    image = open_image(path, channels, content)
    if size is not None:
        image = (resize_to_cover if whole else resize_and_crop)(image, *height_and_width(size))
    pixels = torch.from_numpy(np.array(image, dtype=np.uint8))  # (H, W) or (H, W, 3)
    if channels == 1:
        return pixels.unsqueeze(0)
    return pixels.permute(2, 0, 1).contiguous()


def open_image(path: Path | str, channels: int, content: bytes | None = None) -> Image.Image:
    """Decode an image file, upright, to mode `L` (one channel) or `RGB` (three). `content` as in `read_image`."""
    if channels not in MODES:
        raise ArcvqError(f"channels is {channels}; it must be 1 or 3")
    try:
        with Image.open(path if content is None else io.BytesIO(content)) as opened:
            check_levels(opened)
            return convert_mode(apply_exif_orientation(opened), MODES[channels])
    except DECODE_ERRORS as error:
        raise UnreadableImage(path, error_reason(error)) from None


class Header(NamedTuple):
    """Size and colour of an image file, known without decoding it."""

    width: int
    height: int
    grey: bool


def image_header(path: Path | str, content: bytes | None = None) -> Header:
    """Read width, height and whether it is greyscale from an image file, without decoding its pixels. `content` as in `read_image`."""
    try:
        with Image.open(path if content is None else io.BytesIO(content)) as opened:
            check_levels(opened)
            width, height = opened.size
            # EXIF orientations 5 to 8 rotate the image by 90 degrees.
            if opened.getexif().get(0x0112, 1) >= 5:
                width, height = height, width
            return Header(width, height, opened.mode in ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "F"))
    except DECODE_ERRORS as error:
        raise UnreadableImage(path, error_reason(error)) from None


def check_levels(image: Image.Image) -> None:
    """Raise ValueError for pixels that have no known range of levels: TIFF files may hold any numbers."""
    # Pillow before version 11 opens the 16-bit greys of PNG files as "I".
    if image.mode == "F" or (image.mode == "I" and image.format != "PNG"):
        raise ValueError("signed or 32-bit pixels; convert to 8 bits")
    if isinstance(image, TiffImagePlugin.TiffImageFile) and image.mode.startswith("I;16"):
        # Pillow gives the numbers of the file as they are.
        (bits,) = image.tag_v2.get(TiffImagePlugin.BITSPERSAMPLE, (16,))
        if bits != 16:
            raise ValueError(f"{bits}-bit pixels; convert to 8 bits")
        if image.tag_v2.get(TiffImagePlugin.PHOTOMETRIC_INTERPRETATION) == 0:
            raise ValueError("16-bit pixels whose 0 is white; convert to 8 bits")


def error_reason(error: BaseException) -> str:
    """The reason why an image cannot be read, in one line."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    if isinstance(error, FileNotFoundError) and error.filename and Path(error.filename).is_symlink():
        return "a link to no file"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def apply_exif_orientation(image: Image.Image) -> Image.Image:
    """Rotate an image as its EXIF orientation says: cameras may store photos rotated."""
    return ImageOps.exif_transpose(image)


def convert_mode(image: Image.Image, mode: str) -> Image.Image:
    """Convert any Pillow image (palette, alpha, 16-bit) to mode `L` or `RGB`; alpha is dropped."""
    if image.mode.startswith("I"):
        # Pillow's own conversion clips 16-bit greys at 255 instead of scaling them.
        levels = np.asarray(image).astype(np.float64)
        image = Image.fromarray(np.clip(np.rint(levels / 257.0), 0, 255).astype(np.uint8))
    if image.mode == "P" and "transparency" in image.info:
        # Through RGBA: else Pillow warns about a palette with a transparency table and may misread it.
        image = image.convert("RGBA")
    return image.convert(mode)


def resize_to_cover(image: Image.Image, height: int, width: int) -> Image.Image:
    """Resize (bicubic, antialiased) until the image just covers height × width."""
    scale = max(height / image.height, width / image.width)
    if scale == 1.0:
        return image
    covering = max(width, round(image.width * scale)), max(height, round(image.height * scale))
    return image.resize(covering, Image.Resampling.BICUBIC)


def resize_and_crop(image: Image.Image, height: int, width: int) -> Image.Image:
    """Resize (bicubic, antialiased) until the image covers height × width, then crop the centre."""
    image = resize_to_cover(image, height, width)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def write_png(path: Path | str, pixels: Tensor) -> None:
    """Write uint8 (C, H, W) as PNG, atomically."""
    write_bytes(Path(path), encode_png(pixels))


def encode_png(pixels: Tensor) -> bytes:
    """The bytes of a PNG file with uint8 pixels (C, H, W)."""
    if pixels.dtype != torch.uint8 or pixels.ndim != 3 or pixels.shape[0] not in MODES:
        raise ArcvqError(
            f"write_png takes uint8 (1 or 3, H, W), but got {pixels.dtype} {tuple(pixels.shape)}; see to_uint8"
        )
    array = pixels.cpu().squeeze(0).numpy() if pixels.shape[0] == 1 else pixels.cpu().permute(1, 2, 0).numpy()
    encoded = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(array)).save(encoded, format="PNG")
    return encoded.getvalue()
