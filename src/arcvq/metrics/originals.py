"""FID's statistics and the features of the originals, cached on disk: they are the same for every model on the same images."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from weakref import WeakKeyDictionary

import PIL
import torch
from torch import Tensor, nn

from arcvq.data import Images, InMemoryImages
from arcvq.errors import ArcvqError
from arcvq.metrics.fid import FeatureStatistics, fid_batch_size
from arcvq.storage import cache_folder, read_tensors, write_tensors

NAMES = ("count", "total", "products", "root")
_network_digests: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def original_statistics_file(
    images: Images, choices: str, network: nn.Module, device: torch.device, batch_size: int
) -> Path | None:
    """The cache file of these originals' FID statistics, named by a hash of all that changes their bits; None if there is none.

    `choices` is a hash of how images become the network's input, such as a protocol's. A set that is decoded on demand has no
    file, because a hash of its images would need all of them decoded.
    """
    return _cache_file("fid", images, choices, network, device, [batch_size, fid_batch_size(device)])


def original_features_file(
    images: Images, choices: str, network: nn.Module, device: torch.device, batch_size: int
) -> Path | None:
    """The cache file of features of these originals, named as that of FID's statistics."""
    return _cache_file("features", images, choices, network, device, [batch_size])


def _cache_file(
    kind: str, images: Images, choices: str, network: nn.Module, device: torch.device, batch: list[int]
) -> Path | None:
    folder = cache_folder()
    if folder is None or not isinstance(images, InMemoryImages):
        return None
    parts = {
        "images": [list(images.pixels.shape), _tensor_digest(images.pixels)],
        "protocol": choices,
        "network": _network_digest(network),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "batch": batch,
        "versions": [torch.__version__, PIL.__version__],
    }
    name = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
    return folder / kind / f"{name}.safetensors"


def read_original_statistics(file: Path | None, device: torch.device) -> FeatureStatistics | None:
    """Read the cached FID statistics of the original images; None if the file is absent or damaged."""
    tensors = _read(file, NAMES)
    if tensors is None:
        return None
    statistics = FeatureStatistics()
    statistics.count = int(tensors["count"])
    statistics.total, statistics.products, statistics.root = (tensors[name].to(device) for name in NAMES[1:])
    return statistics


def write_original_statistics(file: Path | None, statistics: FeatureStatistics) -> None:
    """Cache statistics with a checksum; a failed write is ignored, because the cache only saves time."""
    if file is not None:
        values = (torch.tensor(statistics.count), statistics.total, statistics.products, statistics.covariance_root())
        _write(file, dict(zip(NAMES, values)))


def read_original_features(file: Path | None) -> Tensor | None:
    """Read cached features, (N, D) on the CPU; None if the file is absent or damaged."""
    tensors = _read(file, ("features",))
    return None if tensors is None else tensors["features"]


def write_original_features(file: Path | None, features: Tensor) -> None:
    """Cache features (N, D) with a checksum; a failed write is ignored."""
    if file is not None:
        _write(file, {"features": features})


def _read(file: Path | None, names: Sequence[str]) -> dict[str, Tensor] | None:
    """The tensors of a cache file; None if it is absent or damaged."""
    if file is None:
        return None
    try:
        # No check whether the file exists: without permission for the folder that raises.
        tensors = read_tensors(file, "a cache of the metrics")
        intact = _tensor_digest(*(tensors[name] for name in names)) == bytes(tensors["digest"].tolist()).hex()
    except (ArcvqError, KeyError):
        return None
    return tensors if intact else None


def _write(file: Path, tensors: dict[str, Tensor]) -> None:
    """Write a cache file with the digest of its tensors; a failed write is ignored."""
    digest = torch.tensor(list(bytes.fromhex(_tensor_digest(*tensors.values()))), dtype=torch.uint8)
    with suppress(ArcvqError, OSError):
        write_tensors(file, {**tensors, "digest": digest})


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
