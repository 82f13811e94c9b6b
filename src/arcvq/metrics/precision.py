"""Measurements run in plain float32, whatever the training around them chose."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """No autocast, and no TensorFloat-32 convolutions: ten bits of mantissa would show in the fourth digit of a
    feature, and the same images would measure differently on the next GPU."""
    with (
        torch.autocast(device.type, enabled=False),
        torch.backends.cudnn.flags(
            enabled=torch.backends.cudnn.enabled,
            benchmark=torch.backends.cudnn.benchmark,
            deterministic=torch.backends.cudnn.deterministic,
            allow_tf32=False,
        ),
    ):
        yield
