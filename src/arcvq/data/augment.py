"""Random crops and flips that depend only on (seed, epoch, index), so a resumed run sees the same pixels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from arcvq.errors import ArcvqError


@dataclass(frozen=True)
class Augmentation:
    """Random changes of training images.

    flip  mirror left and right, with probability 1/2
    crop  side of a square crop at a random position
    """

    flip: bool = False
    crop: int | None = None

    @property
    def draws(self) -> bool:
        """Whether anything is drawn."""
        return self.flip or self.crop is not None

    def check(self, height: int, width: int) -> None:
        """Raise if the crop is larger than images of this size."""
        if self.crop is not None and not 1 <= self.crop <= min(height, width):
            raise ArcvqError(f"data.crop is {self.crop}, but the images are {height}×{width}")


class Window(NamedTuple):
    """A square to be cut out of an image whose size is known only when it is decoded: its side, and random numbers for its place."""

    side: int
    top: int
    left: int

    def cut(self, pixels: Tensor) -> Tensor:
        """The window (C, side, side) of pixels (C, H, W)."""
        top, left = (bits % (size - self.side + 1) for bits, size in zip((self.top, self.left), pixels.shape[1:]))
        return pixels[:, top : top + self.side, left : left + self.side]


def draw_windows(side: int, seed: int, epoch: int, index: Tensor) -> list[Window]:
    """A window for each of the images `index` (b,); in images of one size, where `draw_augmentation` places the crops."""
    tops, lefts = (random_bits(seed, epoch, stream, index.numpy()).tolist() for stream in (1, 2))
    return [Window(side, top, left) for top, left in zip(tops, lefts)]


def draw_augmentation(
    options: Augmentation, size: tuple[int, int], seed: int, epoch: int, index: Tensor
) -> dict[str, Tensor]:
    """Random flips (`flip`, bool (b,)) and crop positions (`top` and `left`, int64 (b,)) for the images `index` (b,)."""
    draws = {}
    if options.flip:
        draws["flip"] = torch.from_numpy(random_bits(seed, epoch, 0, index.numpy()) & np.uint64(1)).bool()
    if options.crop is not None:
        for stream, (name, side) in enumerate(zip(("top", "left"), size), 1):
            positions = np.uint64(side - options.crop + 1)
            draws[name] = torch.from_numpy(
                (random_bits(seed, epoch, stream, index.numpy()) % positions).astype(np.int64)
            )
    return draws


def augment(pixels: Tensor, draws: Mapping[str, Tensor], options: Augmentation) -> Tensor:
    """Crop and flip pixels (b, C, H, W) as drawn by `draw_augmentation`. Reads nothing on the host."""
    if options.crop is not None:
        steps = torch.arange(options.crop, device=pixels.device)
        rows = (draws["top"][:, None] + steps)[:, None, :, None]  # (b, 1, crop, 1)
        columns = (draws["left"][:, None] + steps)[:, None, None, :]  # (b, 1, 1, crop)
        batch = torch.arange(pixels.shape[0], device=pixels.device)[:, None, None, None]
        channels = torch.arange(pixels.shape[1], device=pixels.device)[None, :, None, None]
        pixels = pixels[batch, channels, rows, columns]
    if options.flip:
        pixels = torch.where(draws["flip"][:, None, None, None], pixels.flip(-1), pixels)
    return pixels


def random_bits(seed: int, epoch: int, stream: int, index: np.ndarray) -> np.ndarray:
    """Random uint64 (b,), one per image: SplitMix64 of the four numbers, equal on every machine."""
    key = np.random.SeedSequence([seed, epoch, stream]).generate_state(1, np.uint64)[0]
    with np.errstate(over="ignore"):
        bits = key + (index.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return bits ^ (bits >> np.uint64(31))
