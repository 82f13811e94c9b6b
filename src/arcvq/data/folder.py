"""A folder of image files as a data set."""

import hashlib
import json
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from arcvq.data.decoded import MEMORY, DecodedImages, OnError, common_shape, load_into_memory
from arcvq.data.files import UnreadableImage, image_header, read_image
from arcvq.data.images import Images, Size, check_limit
from arcvq.data.reading import raise_if_unreadable, read_in_threads
from arcvq.data.splits import choose_test, spread
from arcvq.errors import ArcvqError

EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif"})
TEST_FOLDERS = ("test", "val")


class FolderImages(DecodedImages):
    """A set of image files that are decoded by threads when a batch needs them."""

    def __init__(self, name: str, paths: Sequence[Path], **options: Any) -> None:
        """`options` as in DecodedImages."""
        super().__init__(name, **options)
        self.paths = list(paths)

    def __len__(self) -> int:
        return len(self.paths)

    def path(self, index: int) -> Path:
        return self.paths[index]

    def read(self, index: int, *, whole: bool = False) -> Tensor:
        """Decode a file to uint8 (C, H, W)."""
        return read_image(self.paths[index], self.channels, self.image_size, whole=whole)

    def subset(self, indices: Sequence[int]) -> Self:
        """The images at these indices."""
        other = super().subset(indices)
        other.paths = [self.paths[index] for index in indices]
        return other

    def fingerprint(self) -> str | None:
        """A hash of the files' paths, sizes and times; None if one is missing."""
        if not self.paths:
            return None
        digest = hashlib.sha256()
        root = os.path.commonpath([path.parent for path in self.paths])
        try:
            for path in self.paths:
                status = path.stat()
                digest.update(json.dumps([os.path.relpath(path, root), status.st_size, status.st_mtime_ns]).encode())
        except OSError:
            return None
        return digest.hexdigest()


# A file's path relative to its split's folder, which decides its order and class, and the path to open.
FoundFile = tuple[Path, Path]


def load_folder(
    folder: Path,
    *,
    split: str,
    image_size: Size | None = None,
    limit: int | None = None,
    name: str | None = None,
    holdout_every: int | None = None,
    on_error: OnError = "stop",
    memory: float = MEMORY,
) -> Images:
    """Load one split of the images below `folder`: into memory if they fit in `memory` GiB, else decoded on demand.

    The splits are `folder/train` and `folder/test` (or `folder/val`) if both exist; otherwise see `choose_test`. The split `all` is
    both together. Labels number the sorted names of the first level of folders.
    """
    splits = split_paths(folder, holdout_every)
    every_path = splits["train"] + splits["test"]
    classes = class_names(every_path)
    splits["all"] = sorted(every_path, key=lambda entry: entry[0].as_posix())
    labels = {split: class_labels(found, classes) for split, found in splits.items()}
    return load_files(
        name or f"folder:{folder}",
        splits,
        split,
        labels=labels,
        classes=classes,
        image_size=image_size,
        limit=limit,
        on_error=on_error,
        memory=memory,
    )


def load_files(
    name: str,
    splits: dict[str, list[FoundFile]],
    split: str,
    *,
    labels: dict[str, Tensor | None],
    classes: list[str] | None,
    image_size: Size | None,
    limit: int | None,
    on_error: OnError,
    memory: float,
) -> Images:
    """One split of a set of image files, as `load_folder` loads it. The headers of both splits are read, to find a common format.

    `limit` picks files evenly from the list, which is grouped by class. One error names all files without an image header and, for
    a set in memory, all files that cannot be decoded; with `on_error="skip"`, others stand in for them.
    """
    check_limit(limit)
    every_path = [path for _, path in splits["train"] + splits["test"]]
    headers = list(read_in_threads(every_path, image_header))
    unreadable = [header for header in headers if isinstance(header, UnreadableImage)]
    if len(unreadable) == len(headers):
        raise_if_unreadable(unreadable)
    channels, height, width = common_shape([path.name for path in every_path], headers, image_size)
    if not splits[split]:
        raise ArcvqError(f"{name} has no image for the {split} split; it needs at least 2 images")
    picks, own_labels = spread(len(splits[split]), limit), labels[split]
    images = FolderImages(
        name,
        [splits[split][index][1] for index in picks],
        channels=channels,
        image_size=image_size,
        height=height,
        width=width,
        labels=None if own_labels is None else own_labels[picks],
        class_names=classes,
        on_error=on_error,
    )
    return load_into_memory(images, memory, unreadable)


def split_folders(folder: Path) -> dict[str, Path] | None:
    """The folders of the train and the test split below `folder`, if both are there."""
    held_out = next((folder / name for name in TEST_FOLDERS if (folder / name).is_dir()), None)
    return {"train": folder / "train", "test": held_out} if (folder / "train").is_dir() and held_out else None


def split_paths(folder: Path, holdout_every: int | None = None) -> dict[str, list[FoundFile]]:
    """The image files of the train and the test split below `folder`."""
    if not folder.is_dir():
        raise ArcvqError(f"no such folder: {folder}; give folder:PATH with the path of a folder of images")
    folders = split_folders(folder)
    if folders is not None:
        refuse_holdout_every(folder, holdout_every)
        return {split: image_paths(path) for split, path in folders.items()}
    # Without both folders, split the files.
    found = image_paths(folder / "train" if (folder / "train").is_dir() else folder)
    test = choose_test([relative.as_posix() for relative, _ in found], holdout_every)
    return {
        "train": [entry for entry, held_out in zip(found, test) if not held_out],
        "test": [entry for entry, held_out in zip(found, test) if held_out],
    }


def refuse_holdout_every(folder: Path, holdout_every: int | None) -> None:
    """Raise if images of a set with test images are to be held out."""
    if holdout_every is not None:
        raise ArcvqError(f"{folder} has a test split of its own: leave data.holdout_every out")


def image_paths(folder: Path) -> list[FoundFile]:
    """All image files below `folder`, sorted by relative path; a warning counts the other files."""
    found, others = find_files(folder)
    if others:
        kinds = ", ".join(f"{kind} ({count})" for kind, count in Counter(others).most_common(10))
        warnings.warn(f"{folder}: {sum(others.values())} files are not images and were left out: {kinds}", stacklevel=2)
    return found


def find_files(folder: Path) -> tuple[list[FoundFile], dict[str, int]]:
    """All image files below `folder`, sorted by relative path, and the number of other files by their ending.

    Paths are compared with forward slashes, so the order is the same on every system.
    """
    files = list(files_below(folder))
    found = [(path.relative_to(folder), path) for path in files if path.suffix.lower() in EXTENSIONS]
    others = Counter(path.suffix.lower() or "no ending" for path in files if path.suffix.lower() not in EXTENSIONS)
    if not found and ".tar" in others:
        raise ArcvqError(f"no images in {folder}, but tar files: write shards:{folder} for shards of images")
    if not found:
        raise ArcvqError(f"no images in {folder}; expected files ending in {', '.join(sorted(EXTENSIONS))}")
    return sorted(found, key=lambda entry: entry[0].as_posix()), dict(sorted(others.items()))


def files_below(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Yield all files below `folder`, and links to no file, which cannot be read.

    Links to folders are followed, except to one above the link (`above`). Hidden files and folders are left out: other programs leave
    them, thumbnails for example.
    """
    above += (folder.resolve(),)
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_file() or (path.is_symlink() and not path.exists()):
            yield path
        elif path.is_dir() and path.resolve() not in above:
            yield from files_below(path, above)


def class_names(paths: Sequence[FoundFile]) -> list[str] | None:
    """The sorted names of the first folder of each path; None if a file is in no folder."""
    if any(len(relative.parts) < 2 for relative, _ in paths):
        return None
    return sorted({relative.parts[0] for relative, _ in paths})


def class_labels(paths: Sequence[FoundFile], classes: list[str] | None) -> Tensor | None:
    """The number of each path's class, int64; None without classes."""
    if classes is None:
        return None
    numbers = {name: index for index, name in enumerate(classes)}
    return torch.tensor([numbers[relative.parts[0]] for relative, _ in paths], dtype=torch.int64)
