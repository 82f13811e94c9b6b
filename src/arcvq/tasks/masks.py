"""Random masks of defective regions, for autoencoders that take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from arcvq.errors import ArcvqError


@dataclass(kw_only=True)
class MasksConfig:
    """What share of the training images gets which mask; the rest counts as defective everywhere, as without a mask.

    block        a rectangle is defective
    empty        nothing is; the decoder does not see the encoder's features then
    least, most  the rectangle's area, as shares of the image's
    unconnected  of the images with a rectangle: the share whose decoder does not see the encoder's features
    hidden       of the images with a rectangle: the share whose defective pixels are grey in the input, as `Tokenizer.inpaint` has
                 them, and must be reconstructed from what is visible; 0: the network always sees them
    """

    block: float = 0.4
    empty: float = 0.2
    least: float = 0.1
    most: float = 0.4
    unconnected: float = 0.5
    hidden: float = 0.5

    def __post_init__(self) -> None:
        for name in ("block", "empty", "least", "most", "unconnected", "hidden"):
            if not 0 <= getattr(self, name) <= 1:
                raise ArcvqError(f"masks.{name} must be from 0 to 1, got {getattr(self, name)}")
        if self.block + self.empty > 1:
            raise ArcvqError(f"masks.block and masks.empty are shares, but add up to {self.block + self.empty}")
        if self.least > self.most:
            raise ArcvqError(f"masks.least must be at most masks.most, got {self.least} and {self.most}")


class Defects(NamedTuple):
    mask: Tensor  # (B, 1, H, W), bool, True where the image is defective
    connected: Tensor  # (B,), bool: the decoder sees the encoder's features of what is visible
    hidden: Tensor  # (B,), bool: the defective pixels are hidden from the encoder


def draw_masks(images: Tensor, config: MasksConfig) -> Defects:
    """Random defects for images (B, C, H, W)."""
    batch, _, height, width = images.shape
    group, area, shape, top, left, skips, sight = torch.rand(7, batch, 1, 1, device=images.device)
    is_block = group < config.block
    is_empty = ~is_block & (group < config.block + config.empty)
    area = config.least + (config.most - config.least) * area
    tall = (area.sqrt() * torch.exp2(2 * shape - 1)).clamp(max=1).maximum(area)  # as a share of the height
    wide = area / tall
    rows = (torch.arange(height, device=images.device).view(1, -1, 1) + 0.5) / height
    columns = (torch.arange(width, device=images.device).view(1, 1, -1) + 0.5) / width
    above, before = top * (1 - tall), left * (1 - wide)
    inside = (rows >= above) & (rows < above + tall) & (columns >= before) & (columns < before + wide)
    mask = torch.where(is_block, inside, ~is_empty).unsqueeze(1)
    connected, hidden = is_block & (skips >= config.unconnected), is_block & (sight < config.hidden)
    return Defects(mask, connected.view(batch), hidden.view(batch))
