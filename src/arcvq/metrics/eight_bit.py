"""Changes of 8-bit images as evaluation scripts make them: floor rounding, JPEG, Pillow's resize."""

import io
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from arcvq.data.pixels import Rounding, to_uint8
from arcvq.data.reading import THREADS, image_threads

HALF_UNIT = 1 << 21  # Pillow's resize weights are integers in units of 2^-22


def requantize_originals(pixels: Tensor, rounding: Rounding) -> Tensor:
    """Originals, uint8 (B, C, H, W), after conversion to [-1, 1] and back with this rounding.

    `round` changes nothing. With `floor` many levels decrease by 1, as in the paper's script, because
    ((v/255 - 0.5)/0.5 + 1)/2·255 is just below the integer v in float32; the order of operations matters. That script divides on
    the CPU, so the 256 levels are computed there: a GPU multiplies by 1/255, and fewer levels change.
    """
    if rounding == "round":
        return pixels
    return requantized_levels().to(pixels.device)[pixels.long()]


@cache
def requantized_levels() -> Tensor:
    """The 256 levels after conversion to [-1, 1] and back with `floor`, uint8 (256,)."""
    return to_uint8((torch.arange(256, dtype=torch.float32) / 255.0 - 0.5) / 0.5, "floor")


def tile_to_rgb(images: Tensor) -> Tensor:
    """Repeat greyscale (B, 1, H, W) to (B, 3, H, W); three channels stay unchanged."""
    return images.expand(-1, 3, -1, -1) if images.shape[1] == 1 else images


def start_jpeg(images: Tensor, quality: int) -> Callable[[], Tensor]:
    """Start to compress uint8 (B, 3, H, W) as JPEG and decode it again, in threads; returns a function that waits for the images.

    Uses Pillow's default chroma subsampling.
    """

    def compress_and_decode(image: Image.Image) -> Image.Image:
        buffer = io.BytesIO()
        image.save(buffer, format="JPEG", quality=quality)
        return Image.open(buffer).convert("RGB")

    return start_on_each_image(images, compress_and_decode)


def pil_resize(images: Tensor, size: int) -> Tensor:
    """Resize uint8 (B, 3, H, W) to (B, 3, size, size) with Pillow's bilinear filter, or its exact emulation on a GPU."""
    if images.is_cuda:
        return emulate_pil_resize(images, size)
    return start_on_each_image(images, lambda image: image.resize((size, size), Image.Resampling.BILINEAR))()


def start_on_each_image(images: Tensor, change: Callable[[Image.Image], Image.Image]) -> Callable[[], Tensor]:
    """Start a Pillow operation on every image, in threads; returns a function that waits for the changed images."""

    def change_images(images: np.ndarray) -> list[np.ndarray]:
        return [np.asarray(change(Image.fromarray(image))) for image in images]

    arrays = np.ascontiguousarray(images.permute(0, 2, 3, 1).cpu().numpy())  # (B, H, W, 3)
    parts = [
        image_threads().submit(change_images, part)
        for part in np.array_split(arrays, min(THREADS, max(1, len(arrays))))
    ]

    def wait() -> Tensor:
        changed = [array for part in parts for array in part.result()]
        if not changed:
            return images
        return torch.from_numpy(np.stack(changed)).to(images.device).permute(0, 3, 1, 2).contiguous()

    return wait


def emulate_pil_resize(images: Tensor, size: int) -> Tensor:
    """Resize uint8 images (B, C, H, W) to (B, C, size, size), with the same bits as Pillow's bilinear filter, on any device.

    As Pillow does, weights are multiples of 2^-22, applied along the rows, then along the columns, with rounding to 8 bits after
    each. On a CPU, Pillow itself is faster.
    """
    across, down = (pil_weights(side, size).to(images.device) for side in (images.shape[-1], images.shape[-2]))
    rows = weigh_and_round(images.double(), across)  # (B, C, H, size)
    return weigh_and_round(rows.mT, down).mT.to(torch.uint8).contiguous()


def weigh_and_round(levels: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums along the last dimension, rounded to levels 0 to 255; exact, as float64 holds integers up to 2^53."""
    return ((levels @ weights + HALF_UNIT) / (2 * HALF_UNIT)).floor().clamp(0, 255)


@cache
def pil_weights(before: int, after: int) -> Tensor:
    """Pillow's bilinear weights from `before` to `after` pixels, as integers in units of 2^-22: float64 (before, after)."""
    scale = before / after
    reach = max(scale, 1.0)  # when shrinking, average over all pixels that fall into one
    weights = torch.zeros(before, after, dtype=torch.float64)
    for new in range(after):
        centre = (new + 0.5) * scale
        first, last = max(int(centre - reach + 0.5), 0), min(int(centre + reach + 0.5), before)
        shares = [max(0.0, 1.0 - abs((old - centre + 0.5) * (1.0 / reach))) for old in range(first, last)]
        total = sum(shares)
        weights[first:last, new] = torch.tensor(
            [int(share * (1.0 / total) * 2 * HALF_UNIT + 0.5) for share in shares], dtype=torch.float64
        )
    return weights
