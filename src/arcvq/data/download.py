"""Download published data sets through torchvision."""

import os
import shutil
import tempfile
from pathlib import Path

import torchvision

from arcvq.data import cifar, idx, photos
from arcvq.errors import ArcvqError


def download(root: Path, name: str, split: str) -> None:
    """Download a data set to a temporary folder, then move its files below `root`.

    So an interrupted download leaves no partial files, and two processes can download at once.
    """
    temporary: str | None = None
    try:
        root.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.mkdtemp(prefix=".download-", dir=root)
        torchvision_class(name)(temporary, download=True)
        move_into_root(Path(temporary), root, name)
    except Exception as error:
        # The exception of a failed download depends on the mirror, the proxy and the torchvision version.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise not_found_error(root, name, split, f"the download failed: {reason.rstrip(':.')}") from None
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def torchvision_class(name: str) -> type[torchvision.datasets.VisionDataset]:
    """The torchvision data set class that downloads this set."""
    return {
        "mnist": torchvision.datasets.MNIST,
        "fashion-mnist": torchvision.datasets.FashionMNIST,
        "cifar10": torchvision.datasets.CIFAR10,
        photos.FLOWERS: torchvision.datasets.Flowers102,
        photos.PETS: torchvision.datasets.OxfordIIITPet,
    }[name]


def move_into_root(temporary: Path, root: Path, name: str) -> None:
    """Move the downloaded files of a data set from `temporary` below `root`."""
    folder = cifar.PICKLED_FOLDER if name == "cifar10" else name
    if name == "cifar10" or name in photos.FOLDERS:
        if not (root / folder).exists():
            os.replace(temporary / folder, root / folder)
        return
    for split in idx.PREFIXES:
        for relative in idx.expected_files(name, split):
            (root / relative).parent.mkdir(parents=True, exist_ok=True)
            os.replace(temporary / relative, root / relative)


def not_found_error(root: Path, name: str, split: str, reason: str) -> ArcvqError:
    """The error for a data set that is not below `root`; names the expected files."""
    if name == "cifar10":
        files = f"{', '.join(cifar.expected_files(split))} (or the folder {cifar.PICKLED_FOLDER})"
    elif name == "photos" or name in photos.FOLDERS:
        files = f"{photos.FLOWERS}/jpg, {photos.FLOWERS}/imagelabels.mat and {photos.PETS}/images"
        name = "photos"
    else:
        files = f"{', '.join(idx.expected_files(name, split))} (each may end in .gz)"
    return ArcvqError(
        f"{name} is not in {root} ({reason}); put {files} there, or point ARCVQ_DATA at a folder that has them"
    )
