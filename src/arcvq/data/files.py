"""One image file to one uint8 tensor, and back."""

import io
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from arcvq.data.images import Size, height_and_width
from arcvq.errors import ArcvqError
from arcvq.storage import write_bytes

# What Pillow raises on damaged files, format by format.
DECODE_ERRORS = (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError)
MODES = {1: "L", 3: "RGB"}


class UnreadableImage(ArcvqError):
    """An image file that cannot be read, and why."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(f"cannot read the image {path} ({reason}); repair the file or take it out")
        self.path, self.reason = Path(path), reason


def read_image(path: Path | str, channels: int, size: Size | None = None) -> Tensor:
    """Decode `path` to uint8 (C, H, W). With `size`, the image is resized until it covers that size, and the centre is kept."""
    if channels not in MODES:
        raise ArcvqError(f"an image has 1 or 3 channels here, but {channels} were asked for")
    try:
        with Image.open(path) as opened:
            image = in_mode(upright(opened), MODES[channels])
    except DECODE_ERRORS as error:
        raise UnreadableImage(path, reason_of(error)) from None
    if size is not None:
        image = fit(image, *height_and_width(size))
    pixels = torch.from_numpy(np.array(image, dtype=np.uint8))  # (H, W) or (H, W, 3)
    if channels == 1:
        return pixels.unsqueeze(0)
    return pixels.permute(2, 0, 1).contiguous()


class Header(NamedTuple):
    """What an image file says of itself before it is decoded."""

    width: int
    height: int
    grey: bool


def image_header(path: Path | str) -> Header:
    try:
        with Image.open(path) as opened:
            width, height = opened.size
            # EXIF orientations 5 to 8 turn the image by 90 degrees.
            if opened.getexif().get(0x0112, 1) >= 5:
                width, height = height, width
            return Header(width, height, opened.mode in ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "F"))
    except DECODE_ERRORS as error:
        raise UnreadableImage(path, reason_of(error)) from None


def reason_of(error: BaseException) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def upright(image: Image.Image) -> Image.Image:
    """A camera may store its pictures turned, with a note of how: undo that."""
    return ImageOps.exif_transpose(image)


def in_mode(image: Image.Image, mode: str) -> Image.Image:
    """Greyscale, palette, alpha and 16-bit files as plain `L` or `RGB`; alpha is dropped."""
    if image.mode.startswith("I"):
        # Pillow's own conversion clips 16-bit greys at 255 instead of scaling them.
        levels = np.asarray(image).astype(np.float64)
        image = Image.fromarray(np.clip(np.rint(levels / 257.0), 0, 255).astype(np.uint8))
    if image.mode == "P" and "transparency" in image.info:
        # A palette whose transparency is a table goes through RGBA, else Pillow warns and may misread it.
        image = image.convert("RGBA")
    return image.convert(mode)


def fit(image: Image.Image, height: int, width: int) -> Image.Image:
    """Resized (bicubic, antialiased) until it covers height × width, then the centre of that size."""
    scale = max(height / image.height, width / image.width)
    if scale != 1.0:
        covering = max(width, round(image.width * scale)), max(height, round(image.height * scale))
        image = image.resize(covering, Image.Resampling.BICUBIC)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def write_png(path: Path | str, pixels: Tensor) -> None:
    """Write uint8 (C, H, W) as PNG. A reader sees the old file or the whole new one, never a part."""
    if pixels.dtype != torch.uint8 or pixels.ndim != 3 or pixels.shape[0] not in MODES:
        raise ArcvqError(
            f"write_png takes uint8 (1 or 3, H, W), but got {pixels.dtype} {tuple(pixels.shape)}; see to_uint8"
        )
    array = pixels.cpu().squeeze(0).numpy() if pixels.shape[0] == 1 else pixels.cpu().permute(1, 2, 0).numpy()
    encoded = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(array)).save(encoded, format="PNG")
    write_bytes(Path(path), encoded.getvalue())
