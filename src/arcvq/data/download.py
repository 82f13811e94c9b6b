"""Bring a published data set into the data root, through torchvision."""

import os
import shutil
import tempfile
from pathlib import Path

import torchvision

from arcvq.data import cifar, idx
from arcvq.errors import ArcvqError


def download(root: Path, name: str, split: str) -> None:
    """Fetch into a temporary folder and move what arrived whole: an interrupted download leaves nothing behind,
    and two processes that fetch at once do not write into each other's files."""
    temporary: str | None = None
    try:
        root.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.mkdtemp(prefix=".download-", dir=root)
        torchvision_class(name)(temporary, download=True)
        publish(Path(temporary), root, name)
    except Exception as error:
        # Which exception a failed download ends in differs with the mirror, the proxy and the torchvision version.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise not_found(root, name, split, f"the download failed: {reason.rstrip(':.')}") from None
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def torchvision_class(name: str) -> type[torchvision.datasets.VisionDataset]:
    return {
        "mnist": torchvision.datasets.MNIST,
        "fashion-mnist": torchvision.datasets.FashionMNIST,
        "cifar10": torchvision.datasets.CIFAR10,
    }[name]


def publish(temporary: Path, root: Path, name: str) -> None:
    if name == "cifar10":
        if not (root / cifar.PICKLED_FOLDER).exists():
            os.replace(temporary / cifar.PICKLED_FOLDER, root / cifar.PICKLED_FOLDER)
        return
    for split in idx.PREFIXES:
        for relative in idx.expected_files(name, split):
            (root / relative).parent.mkdir(parents=True, exist_ok=True)
            os.replace(temporary / relative, root / relative)


def not_found(root: Path, name: str, split: str, reason: str) -> ArcvqError:
    if name == "cifar10":
        files = f"{', '.join(cifar.expected_files(split))} (or the folder {cifar.PICKLED_FOLDER})"
    else:
        files = f"{', '.join(idx.expected_files(name, split))} (each may end in .gz)"
    return ArcvqError(
        f"{name} is not in {root} ({reason}); put there {files}, or point ARCVQ_DATA at a folder that has them"
    )
