"""Between 8-bit pixels and the [-1, 1] floats that every model here takes and gives."""

from typing import Literal

import torch
from torch import Tensor

from arcvq.errors import ArcvqError

Rounding = Literal["round", "floor"]


def to_unit(pixels: Tensor, layout: torch.memory_format = torch.preserve_format) -> Tensor:
    """uint8 in 0..255 to float32 in [-1, 1], as the pixels lie in memory or in another layout."""
    if pixels.dtype != torch.uint8:
        raise ArcvqError(f"to_unit takes uint8 pixels, but got {pixels.dtype}; 8-bit images come from load_images")
    return pixels.to(torch.float32, memory_format=layout) / 127.5 - 1.0


def to_uint8(images: Tensor, rounding: Rounding = "round") -> Tensor:
    """Floats in [-1, 1] to uint8; what lies outside is clamped. `floor` is what the paper's evaluation script does."""
    if rounding not in ("round", "floor"):
        raise ArcvqError(f"unknown rounding {rounding!r}; use 'round' or 'floor'")
    if not images.is_floating_point():
        raise ArcvqError(f"to_uint8 takes floats in [-1, 1], but got {images.dtype}")
    # Halving before scaling is the order of operations that the floor variant depends on, to the last float32 bit.
    levels = (images.to(torch.float32).clamp(-1.0, 1.0) + 1.0) / 2.0 * 255.0
    levels = levels.round() if rounding == "round" else levels.floor()
    return levels.to(torch.uint8)
