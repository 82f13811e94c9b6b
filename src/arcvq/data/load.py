"""Data sets by name."""

import os
from pathlib import Path
from typing import Literal

from arcvq.data.cifar import find_cifar
from arcvq.data.download import download as fetch_published
from arcvq.data.download import not_found
from arcvq.data.embedded import load_sample
from arcvq.data.folder import load_folder
from arcvq.data.idx import find_idx, read_idx_images
from arcvq.data.images import Images, InMemoryImages, Size, first_images, resized
from arcvq.errors import ArcvqError

Split = Literal["train", "test"]
PUBLISHED = ("mnist", "fashion-mnist", "cifar10")


def data_names() -> list[str]:
    """What load_images takes; PATH stands for a folder of images."""
    return ["sample", *PUBLISHED, "folder:PATH"]


def data_root() -> Path:
    """Where published sets are looked for and kept: ARCVQ_DATA, or a cache folder in the home folder."""
    return Path(os.environ.get("ARCVQ_DATA") or Path.home() / ".cache" / "arcvq" / "data")


def load_images(
    name: str,
    *,
    split: Split,
    root: Path | None = None,
    image_size: Size | None = None,
    limit: int | None = None,
    download: bool = True,
) -> Images:
    """One split of a data set.

    `limit` keeps the first so many images (of a folder: so many, spread evenly over it). With `image_size`, the side of a
    square or (height, width), images are resized until they cover that size, and the centre is kept. A published set that is
    not below `root` is downloaded, unless `download` is off.
    """
    if split not in ("train", "test"):
        raise ArcvqError(f"unknown split {split!r}; use 'train' or 'test'")
    if name.startswith("folder:"):
        path = name.removeprefix("folder:")
        if not path:
            raise ArcvqError("folder: needs a path, as in folder:photos")
        return load_folder(Path(path).expanduser(), split=split, image_size=image_size, limit=limit, name=name)
    if name == "sample":
        images = load_sample(split)
    elif name in PUBLISHED:
        images = load_published(name, split, root or data_root(), download)
    else:
        raise ArcvqError(f"unknown data set {name!r}; choose one of {', '.join(data_names())}")
    images = first_images(images, limit)
    return images if image_size is None else resized(images, image_size)


def load_published(name: str, split: Split, root: Path, download: bool) -> InMemoryImages:
    images = on_disk(name, split, root)
    if images is not None:
        return images
    if not download:
        raise not_found(root, name, split, "and downloading is off")
    fetch_published(root, name, split)
    images = on_disk(name, split, root)
    if images is None:
        raise not_found(root, name, split, "the download brought other files than expected")
    return images


def on_disk(name: str, split: Split, root: Path) -> InMemoryImages | None:
    if name == "cifar10":
        return find_cifar(root, split)
    files = find_idx(root, name, split)
    return None if files is None else read_idx_images(name, *files)
