"""Measurements run in plain float32, whatever the training around them chose."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """No autocast, and no TensorFloat-32 convolutions (torch's default on NVIDIA GPUs): ten bits of mantissa would show
    in the fourth digit of a feature, and the same images would measure differently on a CPU."""
    # Only the convolutions' own setting: torch refuses to read its older allow_tf32 switch once the settings differ.
    convolutions = torch.backends.cudnn.conv  # type: ignore[attr-defined]  # set at import, unseen by mypy
    before = convolutions.fp32_precision
    convolutions.fp32_precision = "ieee"
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        convolutions.fp32_precision = before
