"""Conversion between 8-bit pixels and floats in [-1, 1], the range of all models here."""

from typing import Literal

import torch
from torch import Tensor

from arcvq.errors import ArcvqError

Rounding = Literal["round", "floor"]


def to_unit(pixels: Tensor, layout: torch.memory_format = torch.preserve_format) -> Tensor:
    """Convert uint8 pixels to float32 in [-1, 1]; `layout` is the memory format of the result."""
    if pixels.dtype != torch.uint8:
        raise ArcvqError(f"to_unit takes uint8 pixels, but got {pixels.dtype}; 8-bit images come from load_images")
    return pixels.to(torch.float32, memory_format=layout) / 127.5 - 1.0


def to_uint8(images: Tensor, rounding: Rounding = "round") -> Tensor:
    """Convert floats to uint8, clamped to [-1, 1] first. The paper's evaluation script rounds with `floor`."""
    if rounding not in ("round", "floor"):
        raise ArcvqError(f"unknown rounding {rounding!r}; use 'round' or 'floor'")
    if not images.is_floating_point():
        raise ArcvqError(f"to_uint8 takes floats in [-1, 1], but got {images.dtype}")
    # The result of `floor` depends on this order of operations: halve first, then scale.
    levels = (images.to(torch.float32).clamp(-1.0, 1.0) + 1.0) / 2.0 * 255.0
    levels = levels.round() if rounding == "round" else levels.floor()
    return levels.to(torch.uint8)
