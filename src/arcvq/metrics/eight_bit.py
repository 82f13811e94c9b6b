"""8-bit images as an evaluation script would have written them to disk and read them back."""

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from arcvq.data.pixels import Rounding, to_uint8


def original_pixels(pixels: Tensor, rounding: Rounding) -> Tensor:
    """The original after its way into [-1, 1] and back, uint8 (B, C, H, W).

    With `round` that is the identity. With `floor` the paper's script loses a level of many originals, because
    ((v/255 - 0.5)/0.5 + 1)/2·255 lands just below the integer v in float32; the order of operations matters.
    """
    if rounding == "round":
        return pixels
    return to_uint8((pixels.float() / 255.0 - 0.5) / 0.5, rounding)


def tile_to_rgb(images: Tensor) -> Tensor:
    """(B, 1, H, W) repeated to (B, 3, H, W); three channels stay as they are."""
    return images.expand(-1, 3, -1, -1) if images.shape[1] == 1 else images


def jpeg_round_trip(images: Tensor, quality: int) -> Tensor:
    """uint8 (B, 3, H, W) through JPEG in memory, with Pillow's default chroma subsampling."""

    def round_trip(image: Image.Image) -> Image.Image:
        buffer = io.BytesIO()
        image.save(buffer, format="JPEG", quality=quality)
        return Image.open(io.BytesIO(buffer.getvalue())).convert("RGB")

    return per_image(images, round_trip)


def pil_resize(images: Tensor, size: int) -> Tensor:
    """uint8 (B, 3, H, W) to (B, 3, size, size), Pillow's bilinear filter."""
    return per_image(images, lambda image: image.resize((size, size), Image.Resampling.BILINEAR))


def per_image(images: Tensor, change: Callable[[Image.Image], Image.Image]) -> Tensor:
    """Apply a Pillow operation to every image; Pillow releases the interpreter's lock, so threads help."""

    def one(pixels: np.ndarray) -> np.ndarray:
        return np.array(change(Image.fromarray(pixels)), dtype=np.uint8)

    if len(images) == 0:
        return images
    arrays = np.ascontiguousarray(images.permute(0, 2, 3, 1).cpu().numpy())  # (B, H, W, 3)
    with ThreadPoolExecutor(max_workers=min(16, cpu_count() or 1)) as threads:
        changed = np.stack(list(threads.map(one, arrays)))
    return torch.from_numpy(changed).permute(0, 3, 1, 2).contiguous().to(images.device)
