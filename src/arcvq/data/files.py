"""One image file to one uint8 tensor, and back."""

import io
import struct
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from arcvq.errors import ArcvqError
from arcvq.storage import write_bytes

# What Pillow raises on damaged files, format by format.
DECODE_ERRORS = (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError)
MODES = {1: "L", 3: "RGB"}


def read_image(path: Path | str, channels: int, size: int | None = None) -> Tensor:
    """Decode `path` to uint8 (C, H, W). With `size`, the shorter side becomes `size` and the centre square is kept."""
    if channels not in MODES:
        raise ArcvqError(f"an image has 1 or 3 channels here, but {channels} were asked for")
    try:
        with Image.open(path) as opened:
            image = in_mode(upright(opened), MODES[channels])
    except FileNotFoundError:
        raise ArcvqError(f"no such image: {path}; check the path") from None
    except DECODE_ERRORS as error:
        raise corrupt(path, error) from None
    if size is not None:
        image = fit_square(image, size)
    pixels = torch.from_numpy(np.array(image, dtype=np.uint8))  # (H, W) or (H, W, 3)
    if channels == 1:
        return pixels.unsqueeze(0)
    return pixels.permute(2, 0, 1).contiguous()


def image_header(path: Path | str) -> tuple[int, int, bool]:
    """Width, height and whether the file is greyscale, from its header alone: nothing is decoded."""
    try:
        with Image.open(path) as opened:
            width, height = opened.size
            # EXIF orientations 5 to 8 turn the image by 90 degrees.
            if opened.getexif().get(0x0112, 1) >= 5:
                width, height = height, width
            return width, height, opened.mode in ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "F")
    except FileNotFoundError:
        raise ArcvqError(f"no such image: {path}; check the path") from None
    except DECODE_ERRORS as error:
        raise corrupt(path, error) from None


def corrupt(path: Path | str, error: BaseException) -> ArcvqError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return ArcvqError(f"cannot read the image {path} ({reason}); repair the file or take it out")


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


def fit_square(image: Image.Image, size: int) -> Image.Image:
    """Shorter side to `size` (bicubic, antialiased), then the centre square."""
    if size < 1:
        raise ArcvqError(f"image_size is {size}; it must be at least 1")
    width, height = image.size
    scale = size / min(width, height)
    if scale != 1.0:
        width, height = max(size, round(width * scale)), max(size, round(height * scale))
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    left, top = (width - size) // 2, (height - size) // 2
    return image.crop((left, top, left + size, top + size))


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
