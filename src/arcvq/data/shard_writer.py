"""Writes the images of a folder as tar shards. The same folder gives the same bytes."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from PIL import Image

from arcvq.data.files import UnreadableImage, error_reason, image_header, open_image, resize_and_crop
from arcvq.data.folder import FoundFile, class_names, find_files, split_folders
from arcvq.data.reading import THREADS, read_in_threads
from arcvq.data.shard_index import IMAGES, INDEX, build_index, describe_shards
from arcvq.data.tar import END, pack
from arcvq.errors import ArcvqError
from arcvq.storage import partial_folder, write_error, write_json

Format = Literal["jpg", "png", "webp", "keep"]
FORMATS: tuple[Format, ...] = ("jpg", "png", "webp", "keep")
PILLOW_FORMATS = {"jpg": "JPEG", "png": "PNG", "webp": "WEBP"}
# Files that threads work on ahead of the writer: enough to keep them busy, and few enough for a small memory.
AHEAD = 4 * THREADS
KEY_DIGITS = 6

# Called with the number of files done and in all.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class ShardOptions:
    """How images are stored in shards.

    size        the shorter side is resized to it; smaller images are skipped
    crop        cut out the square in the centre
    dedupe      skip images whose pixels equal those of an earlier one
    shard_size  bytes that a shard has at most, unless one image is larger
    format      jpg, png or webp; keep: the bytes of the file as they are, neither resized nor cropped
    quality     of jpg and webp, 1 to 100
    """

    size: int = 256
    crop: bool = True
    dedupe: bool = False
    shard_size: int = 1 << 29
    format: Format = "jpg"
    quality: int = 95

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ArcvqError(f"unknown format {self.format!r}; choose one of {', '.join(FORMATS)}")
        if min(self.size, self.shard_size) < 1:
            raise ArcvqError(f"size is {self.size} and shard_size {self.shard_size}; both must be at least 1")
        if not 1 <= self.quality <= 100:
            raise ArcvqError(f"quality is {self.quality}; it must be from 1 to 100")


@dataclass
class ShardReport:
    """What `write_shards` wrote and what it skipped: images and shards by split folder, and path → reason.

    `not_images` are the numbers of other files, by their ending.
    """

    images: dict[str, int] = field(default_factory=dict)
    shards: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    not_images: dict[str, int] = field(default_factory=dict)


def write_shards(
    folder: Path, out: Path, options: ShardOptions | None = None, *, progress: Progress | None = None
) -> ShardReport:
    """Write the images below `folder` as shards into the new folder `out`, with an index and report.json.

    `folder/train` and `folder/test` (or `folder/val`) become folders of their own. A class is the first folder of a path, as in
    `load_folder`. `out` appears when everything is written.
    """
    options = options or ShardOptions()
    if not folder.is_dir():
        raise ArcvqError(f"no such folder: {folder}; give the path of a folder of images")
    folders = split_folders(folder)
    places = {"images": folder} if folders is None else {path.name: path for path in folders.values()}
    found: dict[str, list[FoundFile]] = {}
    others = Counter[str]()
    for split, path in places.items():
        found[split], not_images = find_files(path)
        others.update(not_images)
    every_path = [entry for entries in found.values() for entry in entries]
    report = ShardReport(not_images=dict(sorted(others.items())))
    classes, done, hashes = class_names(every_path), 0, dict[bytes, str]()
    numbers = {name: index for index, name in enumerate(classes or [])}
    with partial_folder(out, "sharding") as partial_out:
        for split, entries in found.items():
            target = partial_out if len(found) == 1 else partial_out / split
            with ShardWriter(target, split, options.shard_size) as writer:
                for key, (relative, path), prepared in _prepare_all(entries, options):
                    name = path.relative_to(folder).as_posix()
                    done += 1
                    if progress:
                        progress(done, len(every_path))
                    reason = _reason_to_skip(prepared, hashes, name, options)
                    if reason is not None:
                        report.skipped[name] = reason
                        continue
                    assert isinstance(prepared, Prepared)
                    label = numbers.get(relative.parts[0])
                    writer.add(key, _sample_files(prepared, name, label))
            if not writer.samples:
                raise ArcvqError(f"no image of {folder} is left for the split {split}: {_first_reason(report)}")
            report.images[split], report.shards[split] = writer.samples, writer.shards
            build_index(target, describe_shards(target), IMAGES, classes).save(target / INDEX)
        write_json(partial_out / "report.json", {**asdict(report), "class_names": classes, "options": asdict(options)})
    return report


@dataclass(frozen=True)
class Prepared:
    """An image as it is stored, and a hash of the pixels it was made from; no content if it is too small."""

    ending: str
    content: bytes | None
    pixels: bytes


def prepare(path: Path, options: ShardOptions) -> Prepared:
    """Read an image file, hash its decoded pixels, and resize, crop and encode it."""
    try:
        original = path.read_bytes()
    except OSError as error:
        raise UnreadableImage(path, error_reason(error)) from None
    image = open_image(path, 1 if image_header(path, original).grey else 3, original)
    pixels = hashlib.sha256(f"{image.mode} {image.size}".encode() + image.tobytes()).digest()
    if options.format == "keep":
        return Prepared(path.suffix.lower().removeprefix("."), original, pixels)
    if min(image.size) < options.size:
        return Prepared(options.format, None, pixels)
    return Prepared(options.format, encode(fit(image, options), options), pixels)


def fit(image: Image.Image, options: ShardOptions) -> Image.Image:
    """Resize an image until its shorter side is `size` (bicubic, antialiased), and cut out the centre if asked to."""
    if options.crop:
        return resize_and_crop(image, options.size, options.size)
    scale = options.size / min(image.size)
    return resize_and_crop(image, *(max(options.size, round(side * scale)) for side in (image.height, image.width)))


def encode(image: Image.Image, options: ShardOptions) -> bytes:
    """The image as a file of the format."""
    content = io.BytesIO()
    quality = {} if options.format == "png" else {"quality": options.quality}
    image.save(content, format=PILLOW_FORMATS[options.format], **quality)
    return content.getvalue()


class ShardWriter:
    """Writes samples into shards NAME-000000.tar, NAME-000001.tar, ... of limited size."""

    def __init__(self, folder: Path, name: str, shard_size: int) -> None:
        self.folder, self.name, self.shard_size = folder, name, shard_size
        self.samples = self.shards = self.written = 0
        self.file: io.BufferedWriter | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, key: str, files: dict[str, bytes]) -> None:
        """Append a sample: its files by ending."""
        packed = b"".join(pack(f"{key}.{ending}", content) for ending, content in sorted(files.items()))
        try:
            if self.file is None or self.written + len(packed) + len(END) > self.shard_size:
                self._close()
                self.file = (self.folder / f"{self.name}-{self.shards:06d}.tar").open("wb")
                self.shards, self.written = self.shards + 1, 0
            self.file.write(packed)
        except OSError as error:
            raise write_error(self.folder, error) from None
        self.written += len(packed)
        self.samples += 1

    def _close(self) -> None:
        if self.file is not None:
            self.file.write(END)
            self.file.close()
            os.utime(self.file.name, (0, 0))  # the index holds it, and must be the same bytes each time

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._close()
        except OSError as failure:
            if kind is None:
                raise write_error(self.folder, failure) from None


def _prepare_all(
    entries: list[FoundFile], options: ShardOptions
) -> Iterator[tuple[str, FoundFile, Prepared | UnreadableImage]]:
    """Yield (key, file, image) in order; threads read ahead. A key is a file's number among all, skipped or not."""
    digits = max(KEY_DIGITS, len(str(len(entries) - 1)))
    prepared = read_in_threads([path for _, path in entries], partial(prepare, options=options), AHEAD)
    for number, (entry, each) in enumerate(zip(entries, prepared)):
        yield f"{number:0{digits}d}", entry, each


def _reason_to_skip(
    prepared: Prepared | UnreadableImage, hashes: dict[bytes, str], name: str, options: ShardOptions
) -> str | None:
    """Why an image is left out; None if it is stored. `hashes` holds the images stored before."""
    if isinstance(prepared, UnreadableImage):
        return f"unreadable: {prepared.reason}"
    if prepared.content is None:
        return f"too small: its shorter side is below {options.size}"
    if options.dedupe and (first := hashes.setdefault(prepared.pixels, name)) != name:
        return f"duplicate of {first}"
    return None


def _sample_files(prepared: Prepared, name: str, label: int | None) -> dict[str, bytes]:
    """The files of a sample by ending: the image, .cls with its label if there are classes, .json with its path."""
    assert prepared.content is not None
    about: dict[str, Any] = {"name": name} | ({} if label is None else {"label": label})
    files = {prepared.ending: prepared.content, "json": json.dumps(about).encode()}
    return files if label is None else files | {"cls": str(label).encode()}


def _first_reason(report: ShardReport) -> str:
    name, reason = next(iter(report.skipped.items()))
    return f"{name} is {reason}"
