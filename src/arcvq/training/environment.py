"""The device, library versions and date that a result records."""

from __future__ import annotations

import datetime
import platform
from importlib.metadata import version

import torch


def today() -> str:
    """The date in UTC, as ISO text."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def device_name(device: torch.device) -> str:
    """E.g. `NVIDIA H200`, or `x86_64 CPU, 2 threads`."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{platform.machine()} CPU, {threads} thread{'s' * (threads > 1)}"


def library_versions() -> dict[str, str]:
    """The versions of Python and of the libraries that change numbers."""
    names = ("arcvq", "torch", "torchvision", "accelerate")
    return {name: version(name) for name in names} | {"python": platform.python_version()}
