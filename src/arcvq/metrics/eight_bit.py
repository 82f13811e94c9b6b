"""8-bit images as an evaluation script would have written them to disk and read them back."""

import io
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from arcvq.data.pixels import Rounding, to_uint8
from arcvq.data.reading import THREADS, image_threads

HALF = 1 << 21  # of Pillow's unit for weights


def original_pixels(pixels: Tensor, rounding: Rounding) -> Tensor:
    """The original after its way into [-1, 1] and back, uint8 (B, C, H, W).

    With `round` that is the identity. With `floor` the paper's script loses a level of many originals, because
    ((v/255 - 0.5)/0.5 + 1)/2·255 lands just below the integer v in float32; the order of operations matters. Its loader
    divides on the CPU, so that is where the 256 levels are computed: a GPU multiplies by 1/255, and fewer of them fall.
    """
    if rounding == "round":
        return pixels
    return floored_levels().to(pixels.device)[pixels.long()]


@cache
def floored_levels() -> Tensor:
    """What becomes of each of the 256 levels."""
    return to_uint8((torch.arange(256, dtype=torch.float32) / 255.0 - 0.5) / 0.5, "floor")


def tile_to_rgb(images: Tensor) -> Tensor:
    """(B, 1, H, W) repeated to (B, 3, H, W); three channels stay as they are."""
    return images.expand(-1, 3, -1, -1) if images.shape[1] == 1 else images


def jpeg_ahead(images: Tensor, quality: int) -> Callable[[], Tensor]:
    """Begin to send uint8 (B, 3, H, W) through JPEG in memory, with Pillow's default chroma subsampling; the function returned waits
    for the images."""

    def round_trip(image: Image.Image) -> Image.Image:
        buffer = io.BytesIO()
        image.save(buffer, format="JPEG", quality=quality)
        return Image.open(buffer).convert("RGB")

    return per_image(images, round_trip)


def pil_resize(images: Tensor, size: int) -> Tensor:
    """uint8 (B, 3, H, W) to (B, 3, size, size), Pillow's bilinear filter: by Pillow, or by the same arithmetic on a GPU."""
    if images.is_cuda:
        return whole_number_resize(images, size)
    return per_image(images, lambda image: image.resize((size, size), Image.Resampling.BILINEAR))()


def per_image(images: Tensor, change: Callable[[Image.Image], Image.Image]) -> Callable[[], Tensor]:
    """Begin a Pillow operation on every image, on all cores, and return what waits for it."""

    def several(part: np.ndarray) -> list[np.ndarray]:
        return [np.asarray(change(Image.fromarray(pixels))) for pixels in part]

    arrays = np.ascontiguousarray(images.permute(0, 2, 3, 1).cpu().numpy())  # (B, H, W, 3)
    parts = [image_threads().submit(several, part) for part in np.array_split(arrays, min(THREADS, max(1, len(arrays))))]

    def result() -> Tensor:
        changed = [array for part in parts for array in part.result()]
        if not changed:
            return images
        return torch.from_numpy(np.stack(changed)).to(images.device).permute(0, 3, 1, 2).contiguous()

    return result


def whole_number_resize(images: Tensor, size: int) -> Tensor:
    """What Pillow computes, to the bit: pixels weighed by multiples of 2^-22, first along the rows, then along the columns,
    rounded to 8 bits after each. For a GPU: in float64 it takes a CPU longer than Pillow."""
    across, down = (pil_weights(side, size).to(images.device) for side in (images.shape[-1], images.shape[-2]))
    rows = weighed(images.double(), across)  # (B, C, H, size)
    return weighed(rows.mT, down).mT.to(torch.uint8).contiguous()


def weighed(levels: Tensor, weights: Tensor) -> Tensor:
    """Products of whole numbers below 2^31 are exact in float64."""
    return ((levels @ weights + HALF) / (2 * HALF)).floor().clamp(0, 255)


@cache
def pil_weights(before: int, after: int) -> Tensor:
    """float64 (before, after) of whole numbers: what each new pixel takes of each old one, times 2^22."""
    scale = before / after
    reach = max(scale, 1.0)  # making smaller averages over as many pixels as go into one
    weights = torch.zeros(before, after, dtype=torch.float64)
    for new in range(after):
        centre = (new + 0.5) * scale
        first, last = max(int(centre - reach + 0.5), 0), min(int(centre + reach + 0.5), before)
        taken = [max(0.0, 1.0 - abs((old - centre + 0.5) * (1.0 / reach))) for old in range(first, last)]
        whole = sum(taken)
        weights[first:last, new] = torch.tensor(
            [int(share * (1.0 / whole) * 2 * HALF + 0.5) for share in taken], dtype=torch.float64
        )
    return weights
