"""The index of a folder of tar shards: where each sample lies, its key and its label. Made on first use, and kept beside the shards."""

from __future__ import annotations

import hashlib
import json
import warnings
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError, safe_open

from arcvq.data.files import Header, UnreadableImage, image_header
from arcvq.data.reading import read_in_threads
from arcvq.data.tar import BLOCK, Member, read_content, read_members
from arcvq.errors import ArcvqError
from arcvq.storage import cache_folder, write_bytes

INDEX = "index.safetensors"
TOKEN_HEADER = "header.json"  # of a folder of token shards
FORMAT = "arcvq-shards-1"
# The endings of the file that a sample is about.
IMAGES = frozenset({"jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "gif"})
TOKENS = frozenset({"npy"})
# An image's header nearly always lies in its first bytes.
HEADER_BYTES = 1 << 16
# What stands for a label that is absent, or is no whole number from 0.
NO_LABEL, NO_NUMBER = -1, -2
# For each sample: its shard, the place, length and header checksum of its file there, its label, and, of images, height,
# width (0 if unreadable) and whether it is greyscale.
FIELDS = ("shard", "offset", "length", "header", "label", "height", "width", "grey")


@dataclass
class ShardIndex:
    """Where the samples of a folder of shards lie, in the order of the shards."""

    folder: Path
    shards: list[dict[str, Any]]  # name, bytes and time of each
    fields: dict[str, np.ndarray]  # int64 (N,) for each of FIELDS
    keys: list[str]
    class_names: list[str] | None = None
    left_out: int = 0  # samples without an image
    labelled: bool = field(init=False)

    def __post_init__(self) -> None:
        self.labelled = bool(len(self.keys)) and bool((self.fields["label"] >= 0).all())

    def __len__(self) -> int:
        return len(self.keys)

    def shard_path(self, index: int) -> Path:
        return self.folder / str(self.shards[int(self.fields["shard"][index])]["name"])

    def sample_path(self, index: int) -> Path:
        """The name of a sample in errors: its shard and its key."""
        return self.shard_path(index) / self.keys[index]

    def read(self, index: int) -> bytes:
        """The content of a sample's file."""
        offset, length, header = (int(self.fields[name][index]) for name in ("offset", "length", "header"))
        return read_content(self.shard_path(index), offset, length, header)

    def unreadable(self) -> list[UnreadableImage]:
        """The errors of the images without a header."""
        return [
            UnreadableImage(self.sample_path(index), "not an image")
            for index in np.flatnonzero(self.fields["height"] == 0).tolist()
        ]

    def header_kinds(self) -> dict[Path, Header]:
        """The different headers of the images, each with an image that has it."""
        readable = np.flatnonzero(self.fields["height"])
        columns = np.stack([self.fields[name][readable] for name in ("width", "height", "grey")])
        _, first = np.unique(columns, axis=1, return_index=True)
        kinds = {self.sample_path(int(readable[i])): columns[:, i].tolist() for i in sorted(first.tolist())}
        return {path: Header(width, height, bool(grey)) for path, (width, height, grey) in kinds.items()}

    def fingerprint(self) -> str:
        """A hash of the shards' names, sizes and times."""
        return hashlib.sha256(json.dumps(self.shards).encode()).hexdigest()

    def save(self, path: Path) -> None:
        about = {"format": FORMAT, "shards": self.shards, "class_names": self.class_names, "left_out": self.left_out}
        encoded = [key.encode() for key in self.keys]
        arrays = {
            **self.fields,
            "keys": np.frombuffer(b"".join(encoded), dtype=np.uint8),
            "key_lengths": np.array([len(key) for key in encoded], dtype=np.int64),
        }
        write_bytes(path, safetensors.numpy.save(arrays, {"about": json.dumps(about)}))

    @classmethod
    def load(cls, path: Path, folder: Path) -> ShardIndex | None:
        """The index in this file; None if it is absent, damaged or of another format."""
        try:
            with safe_open(path, "np") as file:
                about = json.loads(file.metadata()["about"])
                arrays = {name: file.get_tensor(name) for name in (*FIELDS, "keys", "key_lengths")}
            if about["format"] != FORMAT:
                return None
            lengths, text = arrays.pop("key_lengths"), arrays.pop("keys").tobytes()
            ends = np.cumsum(lengths)
            keys = [text[end - length : end].decode() for end, length in zip(ends.tolist(), lengths.tolist())]
            index = cls(folder, about["shards"], arrays, keys, about["class_names"], about["left_out"])
            return index if index._is_consistent() else None
        except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def _is_consistent(self) -> bool:
        """Whether every sample lies inside its shard: an index may come from anywhere."""
        names = [*(shard["name"] for shard in self.shards), *(self.class_names or [])]
        if not all(isinstance(name, str) for name in names) or type(self.left_out) is not int:
            return False
        shapes = {array.shape for array in self.fields.values()} | {(len(self.keys),)}
        if shapes != {(len(self.keys),)} or any(array.dtype != np.int64 for array in self.fields.values()):
            return False
        shard, offset, length = (self.fields[name] for name in ("shard", "offset", "length"))
        sizes = np.array([int(each["bytes"]) for each in self.shards], dtype=np.int64)
        if len(shard) == 0 or shard.min() < 0 or shard.max() >= len(sizes) or offset.min() < BLOCK or length.min() < 0:
            return False
        if self.class_names is not None and self.fields["label"].max() >= len(self.class_names):
            return False
        return bool((length <= sizes[shard]).all() and (offset <= sizes[shard] - length).all())


def open_index(folder: Path) -> ShardIndex:
    """The index of the image shards in a folder: the one kept there or in the cache if it is still right, else a new one."""
    if (folder / TOKEN_HEADER).is_file():
        raise ArcvqError(f"{folder}: holds shards of tokens, not of images")
    shards = describe_shards(folder)
    class_names = None
    for file in filter(None, (folder / INDEX, cached_file(folder))):
        index = ShardIndex.load(file, folder)
        if index is None:
            continue
        check_complete(index, shards)
        if index.shards == shards:
            return index
        class_names = class_names or index.class_names  # the shards do not have them
    index = build_index(folder, shards, IMAGES, class_names)
    try:
        index.save(folder / INDEX)
    except ArcvqError:  # a folder that cannot be written to
        if (cached := cached_file(folder)) is not None:
            with suppress(ArcvqError):  # without a cache only time is lost
                index.save(cached)
    return index


def cached_file(folder: Path) -> Path | None:
    """The index in the cache, for a folder that cannot be written to."""
    cache = cache_folder()
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:32]
    return None if cache is None else cache / "shards" / f"{name}.safetensors"


def describe_shards(folder: Path) -> list[dict[str, Any]]:
    """Name, size and time of each shard in a folder, sorted by name."""
    if not folder.is_dir():
        raise ArcvqError(f"no such folder: {folder}; give shards:PATH with the path of a folder of .tar files")
    files = sorted(path for path in folder.iterdir() if not path.name.startswith(".") and path.is_file())
    packed = [path.name for path in files if ".tar." in path.name or path.suffix in (".tgz", ".tbz", ".txz")]
    if packed:
        raise ArcvqError(f"{folder / packed[0]}: is compressed, and only plain .tar files are read: unpack it")
    shards = [path for path in files if path.suffix == ".tar"]
    if not shards:
        raise ArcvqError(f"no shards in {folder}; expected files ending in .tar")
    return [{"name": path.name, "bytes": path.stat().st_size, "modified": path.stat().st_mtime_ns} for path in shards]


def check_complete(index: ShardIndex, shards: Sequence[dict[str, Any]]) -> None:
    """Raise if a shard of the index is missing."""
    missing = {shard["name"] for shard in index.shards} - {shard["name"] for shard in shards}
    if missing:
        raise ArcvqError(
            f"{index.folder / min(missing)}: the shard is missing: bring it back, or delete {INDEX} to do without it"
        )


def build_index(
    folder: Path, shards: list[dict[str, Any]], endings: frozenset[str], class_names: list[str] | None = None
) -> ShardIndex:
    """Read the headers of all shards, and of all images in them. A sample without a file of such an ending is left out."""
    keys: list[str] = []
    rows = array("q")  # as numbers, because there may be millions
    left_out = 0
    for number, shard in enumerate(shards):
        path = folder / shard["name"]
        for key, found in groupby(read_members(path), key=lambda member: member.key):
            members = list(found)
            about = choose_file(members, endings)
            if about is None:
                left_out += 1
                continue
            keys.append(key)
            label = read_label(path, members)
            rows.extend((number, about.offset, about.length, about.header, label, 0, 0, 0))
    if not rows:
        expected = ", ".join(sorted(endings))
        raise ArcvqError(f"no samples in the shards of {folder}; expected files ending in {expected}")
    if left_out:
        warnings.warn(f"{folder}: {left_out} samples of the shards hold no image and were left out", stacklevel=2)
    columns = np.frombuffer(rows, dtype=np.int64).reshape(-1, len(FIELDS)).T.copy()
    index = ShardIndex(folder, shards, dict(zip(FIELDS, columns)), keys, class_names, left_out)
    if endings is IMAGES:
        for number, header in enumerate(read_headers(index)):
            if isinstance(header, Header):
                values = {"height": header.height, "width": header.width, "grey": int(header.grey)}
                for name, value in values.items():
                    index.fields[name][number] = value
    return index


def read_headers(index: ShardIndex) -> Iterator[Header | UnreadableImage]:
    """The header of each image, read by threads from its first bytes, or from all if these are not enough."""

    def read(number: int) -> Header:
        path, content = index.sample_path(number), index.read(number)
        try:
            return image_header(path, content[:HEADER_BYTES])
        except UnreadableImage:
            return image_header(path, content)

    return read_in_threads(range(len(index)), read)


def choose_file(members: Sequence[Member], endings: frozenset[str]) -> Member | None:
    """The file that a sample is about: KEY.png before KEY.image.png, and both before other KEY.NAME.png, e.g. masks."""

    def rank(member: Member) -> int:
        names = member.ending.lower().split(".")[:-1]
        return 0 if not names else 1 if names == ["image"] else 2

    found = [member for member in members if member.ending.lower().rpartition(".")[2] in endings]
    return min(found, key=rank, default=None)


def warn_of_labels(folder: Path, indices: Iterable[ShardIndex]) -> None:
    """Warn if images lose their labels because others have none, or if labels are no numbers."""
    labels = np.concatenate([index.fields["label"] for index in indices])
    without = int((labels < 0).sum())
    if without and (labels != NO_LABEL).any():
        warnings.warn(
            f"{folder}: {without} of {len(labels)} images have no label that is a whole number from 0, so that none counts as "
            "labelled",
            stacklevel=2,
        )


def read_label(shard: Path, members: Sequence[Member]) -> int:
    """The label of a sample: the number in its .cls, or `label` in its .json; else NO_LABEL or NO_NUMBER."""
    by_ending = {member.ending: member for member in members}
    for ending in ("cls", "json"):
        if (member := by_ending.get(ending)) is None:
            continue
        content = read_content(shard, member.offset, member.length, member.header)
        try:
            value = int(content) if ending == "cls" else json.loads(content)
        except (ValueError, RecursionError):
            return NO_NUMBER
        if ending == "json":
            value = value.get("label") if isinstance(value, dict) else None
        if value is not None:
            return value if type(value) is int and 0 <= value < 2**62 else NO_NUMBER
    return NO_LABEL
