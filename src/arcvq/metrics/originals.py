"""FID's statistics of the originals, cached on disk: they are the same for every model on the same images."""

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
from arcvq.metrics.fid import FeatureStatistics, fid_batch_size
from arcvq.metrics.protocols import Protocol
from arcvq.storage import cache_folder, read_tensors, write_tensors

NAMES = ("count", "total", "products", "root")
_network_digests: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def original_statistics_file(
    images: Images, protocol: Protocol, network: nn.Module, device: torch.device, batch_size: int
) -> Path | None:
    """The cache file of these originals' FID statistics, named by a hash of all that changes their bits; None if there is none.

    A set that is decoded on demand has none, because a hash of its images would need all of them decoded.
    """
    folder = cache_folder()
    if folder is None or not isinstance(images, InMemoryImages):
        return None
    parts = {
        "images": [list(images.pixels.shape), _tensor_digest(images.pixels)],
        "protocol": protocol.hash,
        "network": _network_digest(network),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "batch": [batch_size, fid_batch_size(device)],
        "versions": [torch.__version__, PIL.__version__],
    }
    name = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
    return folder / "fid" / f"{name}.safetensors"


def read_original_statistics(file: Path | None, device: torch.device) -> FeatureStatistics | None:
    """Read the cached FID statistics of the original images; None if the file is absent or damaged."""
    if file is None:
        return None
    try:
        # No check whether the file exists: without permission for the folder that raises.
        tensors = read_tensors(file, "FID's statistics")
        intact = _tensor_digest(*(tensors[name] for name in NAMES)) == bytes(tensors["digest"].tolist()).hex()
    except (ArcvqError, KeyError):
        return None
    if not intact:
        return None
    statistics = FeatureStatistics()
    statistics.count = int(tensors["count"])
    statistics.total, statistics.products, statistics.root = (tensors[name].to(device) for name in NAMES[1:])
    return statistics


def write_original_statistics(file: Path | None, statistics: FeatureStatistics) -> None:
    """Cache statistics with a checksum; a failed write is ignored, because the cache only saves time."""
    if file is None:
        return
    values = (torch.tensor(statistics.count), statistics.total, statistics.products, statistics.covariance_root())
    digest = torch.tensor(list(bytes.fromhex(_tensor_digest(*values))), dtype=torch.uint8)
    with suppress(ArcvqError, OSError):
        write_tensors(file, {**dict(zip(NAMES, values)), "digest": digest})


def _network_digest(network: nn.Module) -> str:
    """A hash of a network's layers and weights, computed once per network."""
    if network not in _network_digests:
        state = network.state_dict()
        layers = hashlib.sha256(f"{network} {list(state)}".encode()).hexdigest()
        _network_digests[network] = layers + _tensor_digest(*state.values())
    return _network_digests[network]


def _tensor_digest(*tensors: Tensor) -> str:
    """SHA-256 of the tensors' bytes."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
