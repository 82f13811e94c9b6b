"""On what a number was made: device, versions, date."""

from __future__ import annotations

import datetime
import platform
from importlib.metadata import version

import torch


def today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{platform.machine()} CPU, {threads} thread{'s' * (threads > 1)}"


def library_versions() -> dict[str, str]:
    names = ("arcvq", "torch", "torchvision", "accelerate")
    return {name: version(name) for name in names} | {"python": platform.python_version()}
