"""Measurements run in plain float32, whatever the training around them chose."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from arcvq.functional.precision import ieee_convolutions


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """No autocast and no TensorFloat-32: ten bits of mantissa would show in the fourth digit of a feature, and the same
    images would measure differently on a CPU."""
    with ieee_convolutions(), torch.autocast(device.type, enabled=False):
        yield
