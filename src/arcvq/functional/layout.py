"""The order in which a batch of images lies in memory."""

from __future__ import annotations

import torch
from torch import Tensor


def memory_format_of(x: Tensor) -> torch.memory_format:
    """channels_last if the channels of (B, C, H, W) are neighbours in memory, else contiguous, which tensors that are both are."""
    channels_last = x.shape[1] > 1 and x.stride(1) == 1 and not x.is_contiguous()
    return torch.channels_last if channels_last else torch.contiguous_format
