"""Load data sets by name."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from arcvq.data import photos
from arcvq.data.cifar import load_cifar
from arcvq.data.class_names import CLASS_NAMES
from arcvq.data.decoded import MEMORY, OnError, readable_images
from arcvq.data.download import download as fetch_published
from arcvq.data.download import not_found_error
from arcvq.data.embedded import load_sample
from arcvq.data.folder import load_folder
from arcvq.data.idx import find_idx_files, read_idx_images
from arcvq.data.images import Images, InMemoryImages, Size, first_images, resize_images
from arcvq.data.photos import load_photos
from arcvq.data.shards import load_shards
from arcvq.errors import ArcvqError

Split = Literal["train", "test", "all"]
PUBLISHED = ("mnist", "fashion-mnist", "cifar10")
FILE_SETS = {"folder": load_folder, "shards": load_shards}


def data_names() -> list[str]:
    """The names that load_images accepts; PATH stands for a folder of images, or of shards."""
    return ["sample", *PUBLISHED, "photos", "folder:PATH", "shards:PATH"]


def data_root() -> Path:
    """The folder of published sets: ARCVQ_DATA, or ~/.cache/arcvq/data."""
    return Path(os.environ.get("ARCVQ_DATA") or Path.home() / ".cache" / "arcvq" / "data")


def load_images(
    name: str,
    *,
    split: Split,
    root: Path | None = None,
    image_size: Size | None = None,
    limit: int | None = None,
    download: bool = True,
    holdout_every: int | None = None,
    on_error: OnError = "stop",
    memory: float = MEMORY,
) -> Images:
    """Load one split of a data set.

    `limit` keeps the first images only (of files: images spread evenly over them). With `image_size`, the side of a square or
    (height, width), images are resized until they cover that size and cropped to the centre. A published set that is not below
    `root` is downloaded, unless `download` is off. Of a folder or shards without a test split, every `holdout_every`-th image is held
    out, or about one in 20; the split `all` of a folder is all its images. With `on_error="skip"`, others stand in for images that
    cannot be read. A set of files whose pixels take at most `memory` GiB is kept in memory.
    """
    if split not in ("train", "test", "all"):
        raise ArcvqError(f"unknown split {split!r}; use 'train' or 'test', or 'all' of folder:PATH")
    kind, colon, path = name.partition(":")
    if split == "all" and kind != "folder":
        raise ArcvqError(f"the split all is for folder:PATH, and {name} has test images: use 'train' or 'test'")
    if colon and kind in FILE_SETS:
        if not path:
            raise ArcvqError(f"{kind}: needs a path, as in {kind}:photos")
        return FILE_SETS[kind](
            Path(path).expanduser(),
            split=split,
            image_size=image_size,
            limit=limit,
            name=name,
            holdout_every=holdout_every,
            on_error=on_error,
            memory=memory,
        )
    if holdout_every is not None:
        raise ArcvqError(f"data.holdout_every is for folder: and shards:, and {name} has test images: leave it out")
    if name == "photos":
        return find_photos(
            root or data_root(),
            download,
            split=split,
            image_size=image_size,
            limit=limit,
            on_error=on_error,
            memory=memory,
        )
    if name == "sample":
        images = load_sample(split)
    elif name in PUBLISHED:
        images = replace(load_published(name, split, root or data_root(), download), class_names=CLASS_NAMES[name])
    else:
        raise ArcvqError(f"unknown data set {name!r}; choose one of {', '.join(data_names())}")
    images = first_images(images, limit)
    return images if image_size is None else resize_images(images, image_size)


def load_readable_images(
    name: str, *, skip: bool, memory: float = MEMORY, **options: Any
) -> tuple[Images, dict[str, str]]:
    """The images of `load_images`, and path → reason of those left out because they cannot be read: with `skip`, else they are errors.

    For measurements, where no image stands in for another one.
    """
    if not skip:
        return load_images(name, **options, memory=memory), {}
    return readable_images(load_images(name, **options, on_error="skip", memory=0), memory)


def load_published(name: str, split: Split, root: Path, download: bool) -> InMemoryImages:
    """Load MNIST, Fashion-MNIST or CIFAR-10 from `root`, and download it if it is absent."""
    images = load_from_disk(name, split, root)
    if images is not None:
        return images
    if not download:
        raise not_found_error(root, name, split, "downloading is off")
    fetch_published(root, name, split)
    images = load_from_disk(name, split, root)
    if images is None:
        raise not_found_error(root, name, split, "the downloaded files are not the expected ones")
    return images


def load_from_disk(name: str, split: Split, root: Path) -> InMemoryImages | None:
    """Load a published set from its files below `root`; None if they are absent."""
    if name == "cifar10":
        return load_cifar(root, split)
    files = find_idx_files(root, name, split)
    return None if files is None else read_idx_images(name, *files)


def find_photos(root: Path, download: bool, *, split: Split, **options: Any) -> Images:
    """Load the photos from `root`, and download what is absent. `options` as in load_photos."""
    images = load_photos(root, split=split, **options)
    if images is not None:
        return images
    if not download:
        raise not_found_error(root, "photos", split, "downloading is off")
    for folder in photos.FOLDERS:
        if not (root / folder).is_dir():
            fetch_published(root, folder, split)
    images = load_photos(root, split=split, **options)
    if images is None:
        raise not_found_error(root, "photos", split, "the downloaded files are not the expected ones")
    return images
