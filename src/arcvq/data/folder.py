"""A folder of image files as a data set."""

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from zlib import crc32

import torch
from torch import Tensor

from arcvq.data.files import Header, UnreadableImage, image_header, read_image
from arcvq.data.images import Images, InMemoryImages, Size, check_limit, height_and_width
from arcvq.data.reading import raise_if_unreadable, read_in_threads
from arcvq.data.variance import cached_variance
from arcvq.errors import ArcvqError

EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif"})
# A folder whose decoded images take at most these bytes is kept in memory.
MEMORY_LIMIT = 1 << 30
# Without a test folder, about one file in TEST_EVERY is used for testing.
TEST_EVERY = 20


class FolderImages:
    """A set of image files that are decoded by threads when a batch needs them."""

    def __init__(
        self,
        name: str,
        paths: Sequence[Path],
        *,
        channels: int,
        image_size: Size | None,
        height: int,
        width: int,
        labels: Tensor | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.name = name
        self.paths = list(paths)
        self.channels = channels
        self.image_size = image_size
        self.height = height
        self.width = width
        self.labels = labels
        self.device = torch.device(device)

    def __len__(self) -> int:
        return len(self.paths)

    def decode(self, path: Path) -> Tensor:
        """Decode one file to uint8 (C, H, W), and check its size."""
        pixels = read_image(path, self.channels, self.image_size)
        if pixels.shape != (self.channels, self.height, self.width):
            found = f"{pixels.shape[2]}x{pixels.shape[1]}"
            raise ArcvqError(f"{path} is {found}, but the others are {self.width}x{self.height}; give an image_size")
        return pixels

    def gather(self, indices: Tensor) -> Tensor:
        """Decode the images `indices` (B,) to uint8 (B, C, H, W) on the set's device."""
        batch = torch.empty(len(indices), self.channels, self.height, self.width, dtype=torch.uint8)
        raise_if_unreadable(self.decode_into(batch, [self.paths[index] for index in indices.tolist()]))
        if self.device.type == "cuda":
            # Pinned memory lets the copy run beside the device's work.
            return batch.pin_memory().to(self.device, non_blocking=True)
        return batch.to(self.device)

    def decode_into(self, pixels: Tensor, paths: Sequence[Path]) -> list[UnreadableImage]:
        """Decode `paths` into the tensor `pixels`, uint8 (B, C, H, W); returns the errors of unreadable files."""
        unreadable = []
        for target, decoded in zip(pixels, read_in_threads(paths, self.decode)):
            if isinstance(decoded, UnreadableImage):
                unreadable.append(decoded)
            else:
                target.copy_(decoded)
        return unreadable

    def to(self, device: torch.device | str) -> "FolderImages":
        """The same set, with batches on `device`."""
        return FolderImages(
            self.name,
            self.paths,
            channels=self.channels,
            image_size=self.image_size,
            height=self.height,
            width=self.width,
            labels=self.labels,
            device=device,
        )

    def pixel_variance(self) -> float:
        """Population variance of all pixels in the [-1, 1] scale, cached on disk."""
        return cached_variance(self)


def load_folder(
    folder: Path, *, split: str, image_size: Size | None = None, limit: int | None = None, name: str | None = None
) -> Images:
    """Load one split of the images below `folder`: into memory if they fit in MEMORY_LIMIT, else decoded on demand.

    The splits are `folder/train` and `folder/test` (or `folder/val`) if both exist; otherwise about one file in 20 is used for
    testing, chosen by its name. Labels number the sorted names of the first level of folders. `limit` picks files evenly from the
    sorted list, which is grouped by class. One error names all files without an image header and, for a set in memory, all files
    that cannot be decoded.
    """
    check_limit(limit)
    splits = split_paths(folder)
    every_path = splits["train"] + splits["test"]
    headers = list(read_in_threads([path for _, path in every_path], image_header))
    unreadable = [header for header in headers if isinstance(header, UnreadableImage)]
    if len(unreadable) == len(headers):
        raise_if_unreadable(unreadable)
    channels, height, width = common_shape(every_path, headers, image_size)
    paths = splits[split]
    if not paths:
        raise ArcvqError(f"{folder} has no image for the {split} split; it needs at least 2 images")
    labels = class_labels(paths, every_path)
    if limit is not None and limit < len(paths):
        picks = [index * len(paths) // limit for index in range(limit)]
        paths = [paths[index] for index in picks]
        labels = None if labels is None else labels[picks]
    images = FolderImages(
        name or f"folder:{folder}",
        [path for _, path in paths],
        channels=channels,
        image_size=image_size,
        height=height,
        width=width,
        labels=labels,
    )
    if len(images) * channels * height * width > MEMORY_LIMIT:
        raise_if_unreadable(unreadable)
        return images
    pixels = torch.empty(len(images), channels, height, width, dtype=torch.uint8)
    unreadable += images.decode_into(pixels, images.paths)
    raise_if_unreadable({error.path: error for error in unreadable}.values())
    return InMemoryImages(images.name, pixels, labels)


# A file's path relative to its split's folder, which decides its order and class, and the path to open.
FoundFile = tuple[Path, Path]


def split_paths(folder: Path) -> dict[str, list[FoundFile]]:
    """The image files of the train and the test split below `folder`."""
    if not folder.is_dir():
        raise ArcvqError(f"no such folder: {folder}; give folder:PATH with the path of a folder of images")
    held_out = next((folder / name for name in ("test", "val") if (folder / name).is_dir()), None)
    if (folder / "train").is_dir() and held_out is not None:
        return {"train": image_paths(folder / "train"), "test": image_paths(held_out)}
    # Without both folders, split the files.
    found = image_paths(folder / "train" if (folder / "train").is_dir() else folder)
    # By name alone, so that files added later move none from one split to the other.
    test = [entry for entry in found if crc32(entry[0].as_posix().encode()) % TEST_EVERY == 0] or found[-1:]
    test = test[: len(found) - 1] or test  # if all names hash to test, keep one to train on
    chosen = {path for _, path in test}
    return {"train": [entry for entry in found if entry[1] not in chosen], "test": test}


def image_paths(folder: Path) -> list[FoundFile]:
    """All image files below `folder`, sorted by relative path; a warning counts the other files.

    Hidden files are ignored: other programs leave them. Paths are compared with forward slashes, so the order is the same on
    every system.
    """
    files = [path for path in files_below(folder) if not path.name.startswith(".")]
    found = [(path.relative_to(folder), path) for path in files if path.suffix.lower() in EXTENSIONS]
    if not found:
        raise ArcvqError(f"no images in {folder}; expected files ending in {', '.join(sorted(EXTENSIONS))}")
    others = Counter(path.suffix.lower() or "no ending" for path in files if path.suffix.lower() not in EXTENSIONS)
    if others:
        kinds = ", ".join(f"{kind} ({count})" for kind, count in others.most_common(10))
        warnings.warn(f"{folder}: {others.total()} files are not images and were left out: {kinds}", stacklevel=2)
    return sorted(found, key=lambda entry: entry[0].as_posix())


def files_below(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Yield all files below `folder`; follows links to folders, except to one above the link (`above`)."""
    above += (folder.resolve(),)
    for path in folder.iterdir():
        if path.is_file():
            yield path
        elif path.is_dir() and path.resolve() not in above:
            yield from files_below(path, above)


def common_shape(
    paths: Sequence[FoundFile], headers: Sequence[Header | UnreadableImage], image_size: Size | None
) -> tuple[int, int, int]:
    """(channels, height, width) for all images; one channel only if all are grey. An error if sizes differ and no size is given."""
    read = [(path, header) for (_, path), header in zip(paths, headers) if isinstance(header, Header)]
    channels = 1 if all(header.grey for _, header in read) else 3
    if image_size is not None:
        return channels, *height_and_width(image_size)
    first, wanted = read[0]
    for path, header in read:
        if (header.width, header.height) != (wanted.width, wanted.height):
            raise ArcvqError(
                f"images differ in size ({first.name} is {wanted.width}x{wanted.height}, {path.name} is "
                f"{header.width}x{header.height}); give an image_size"
            )
    return channels, wanted.height, wanted.width


def class_labels(paths: Sequence[FoundFile], every_path: Sequence[FoundFile]) -> Tensor | None:
    """Labels from the first folder of each path, numbered over both splits; None if a file is in no folder."""
    if any(len(relative.parts) < 2 for relative, _ in every_path):
        return None
    classes = {name: index for index, name in enumerate(sorted({relative.parts[0] for relative, _ in every_path}))}
    return torch.tensor([classes[relative.parts[0]] for relative, _ in paths], dtype=torch.int64)
