"""FID's statistics of the originals, kept on disk: they are the same for every model that is measured on these images."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from weakref import WeakKeyDictionary

import PIL
import torch
from torch import Tensor, nn

from arcvq.data import Images, InMemoryImages
from arcvq.errors import ArcvqError
from arcvq.metrics.fid import FeatureStatistics, images_at_once
from arcvq.metrics.protocols import Protocol
from arcvq.storage import cache_folder, read_tensors, write_tensors

NAMES = ("count", "total", "products", "root")
_identities: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def originals_file(
    images: Images, protocol: Protocol, network: nn.Module, device: torch.device, batch_size: int
) -> Path | None:
    """Where these statistics are kept, named by all that decides their bits.

    None for a set that is read as it is needed: to know its images is to read them all.
    """
    folder = cache_folder()
    if folder is None or not isinstance(images, InMemoryImages):
        return None
    decides = {
        "images": [list(images.pixels.shape), _digest(images.pixels)],
        "protocol": protocol.hash,
        "network": _identity(network),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "batch": [batch_size, images_at_once(device)],
        "versions": [torch.__version__, PIL.__version__],
    }
    name = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:32]
    return folder / "fid" / f"{name}.safetensors"


def read_originals(file: Path | None, device: torch.device) -> FeatureStatistics | None:
    """As they were written; None when there are none, or none that can be read."""
    if file is None:
        return None
    try:
        # Not asked first whether it is there: in a folder that is not ours, that is an error.
        found = read_tensors(file, "FID's statistics")
        whole = _digest(*(found[name] for name in NAMES)) == bytes(found["digest"].tolist()).hex()
    except (ArcvqError, KeyError):
        return None
    if not whole:
        return None
    statistics = FeatureStatistics()
    statistics.count = int(found["count"])
    statistics.total, statistics.products, statistics.root = (found[name].to(device) for name in NAMES[1:])
    return statistics


def write_originals(file: Path | None, statistics: FeatureStatistics) -> None:
    """Best effort: a disk that is full or not ours costs time, not the measurement."""
    if file is None:
        return
    values = (torch.tensor(statistics.count), statistics.total, statistics.products, statistics.covariance_root())
    digest = torch.tensor(list(bytes.fromhex(_digest(*values))), dtype=torch.uint8)
    with suppress(ArcvqError, OSError):
        write_tensors(file, {**dict(zip(NAMES, values)), "digest": digest})


def _identity(network: nn.Module) -> str:
    """Of its layers and weights, computed once for each network."""
    if network not in _identities:
        state = network.state_dict()
        layers = hashlib.sha256(f"{network} {list(state)}".encode()).hexdigest()
        _identities[network] = layers + _digest(*state.values())
    return _identities[network]


def _digest(*tensors: Tensor) -> str:
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
