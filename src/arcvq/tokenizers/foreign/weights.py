"""The tensors of another project's file, by name: read one by one, and only those that are asked for.

Takes what torch.save writes, in its zip format and in the one before it, and safetensors. Nothing in a file is run (see pickles.py).
"""

from __future__ import annotations

import mmap
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arcvq.errors import ArcvqError
from arcvq.storage import read_tensors
from arcvq.tokenizers.foreign.pickles import DamagedPickle, Inert, Names, ordered_dict, read_pickle

# Bytes of the pickle in a file: of the largest checkpoints, with their optimizers, some megabytes.
MAX_PICKLE = 1 << 28
# The three pickles with which a file of the format before zip begins, of which the first two are these numbers.
LEGACY_NUMBERS = (0x1950A86A20F9469CFC6C, 1001)
# Dimensions of a tensor.
MAX_DIMENSIONS = 16
# What the storages of torch hold, by name.
DTYPES = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


@dataclass
class Weights:
    """The tensors of a file: their shapes, and how one is read."""

    file: Path
    shapes: dict[str, tuple[int, ...]]
    read: Callable[[str], Tensor]

    def renamed(self, rename: Callable[[str], str]) -> Weights:
        """The same tensors under other names."""
        names = {rename(name): name for name in self.shapes}
        return Weights(
            self.file, {new: self.shapes[old] for new, old in names.items()}, lambda new: self.read(names[new])
        )

    def without(self, *prefixes: str) -> Weights:
        """The tensors whose names begin with none of these."""
        kept = {name: shape for name, shape in self.shapes.items() if not name.startswith(prefixes)}
        return Weights(self.file, kept, self.read)


@dataclass(frozen=True)
class Storage:
    """Numbers of one type in a file."""

    key: str
    dtype: torch.dtype | None  # None for a type that weights do not have
    length: int


@dataclass(frozen=True)
class View:
    """A tensor: where its numbers lie in a storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def read_weights(file: Path) -> Weights:
    """The tensors of a file that torch.save or safetensors has written."""
    if file.suffix == ".safetensors":
        tensors = read_tensors(file, "a checkpoint")
        return Weights(file, {name: tuple(tensor.shape) for name, tensor in tensors.items()}, tensors.__getitem__)
    try:
        root, read_storage = _read_zip(file) if zipfile.is_zipfile(file) else _read_legacy(file)
    except FileNotFoundError:
        raise ArcvqError(f"{file}: no such file") from None
    except ArcvqError:
        raise
    except (DamagedPickle, zipfile.BadZipFile, RuntimeError, EOFError, ValueError, struct.error) as error:
        reason = " ".join(str(error).split())[:160]
        raise ArcvqError(f"{file}: damaged, or not a file that torch.save has written ({reason})") from None
    views = _state_dict(root, file)
    return Weights(file, {name: view.shape for name, view in views.items()}, _reader(file, views, read_storage))


def _state_dict(root: Any, file: Path) -> dict[str, View]:
    """The tensors of a checkpoint, which are its state_dict or lie in it."""
    if isinstance(root, Inert):
        raise ArcvqError(f"{file}: holds a whole {root.name}, not tensors: save its state_dict() instead")
    state = root.get("state_dict", root) if isinstance(root, dict) else None
    views = {name: value for name, value in state.items() if isinstance(value, View)} if isinstance(state, dict) else {}
    if not views:
        raise ArcvqError(f"{file}: holds no tensors by name; expected a state_dict, or a checkpoint that has one")
    return {str(name): view for name, view in views.items()}


def _reader(file: Path, views: Mapping[str, View], read_storage: Callable[[Storage], bytes]) -> Callable[[str], Tensor]:
    """A function that reads a tensor. All together they may not take more bytes than the file has, whatever it claims."""
    left = file.stat().st_size

    def read(name: str) -> Tensor:
        nonlocal left
        view = views[name]
        dtype = view.storage.dtype
        if dtype is None or not dtype.is_floating_point:
            raise ArcvqError(f"{file}: {name} has no floating-point numbers")
        left -= prod(view.shape) * dtype.itemsize
        if left < 0:
            raise ArcvqError(f"{file}: its tensors are larger than the file")
        try:
            numbers = read_storage(view.storage)
        except (OSError, ValueError, zipfile.BadZipFile, RuntimeError) as error:
            raise ArcvqError(f"{file}: {name} cannot be read ({' '.join(str(error).split())[:120]})") from None
        if len(numbers) != view.storage.length * dtype.itemsize:
            raise ArcvqError(f"{file}: {name} is truncated")
        if not prod(view.shape):
            return torch.empty(view.shape, dtype=dtype)
        flat = torch.frombuffer(bytearray(numbers), dtype=dtype)
        return flat.as_strided(view.shape, view.stride, view.offset).clone()

    return read


# ---- tensors in pickles -------------------------------------------------------------------------------------------------


def _names(storages: dict[str, Storage]) -> Names:
    """What the pickle of a checkpoint may name: how torch writes tensors, and ordered dictionaries. Notes the storages by key."""

    def storage(identifier: Any) -> Any:
        """The storage that a persistent id describes: ("storage", type, key, device, length), inert for another."""
        match identifier:
            case ("storage", Inert(name=name), str(key), _, int(length), *rest) if length >= 0:
                if any(value is not None for value in rest):
                    raise DamagedPickle("its storages are views of each other, as torch wrote them before 0.4")
                return storages.setdefault(key, Storage(key, DTYPES.get(name.rpartition(".")[2]), length))
        return Inert("storage")

    rebuild = {
        "collections.OrderedDict": ordered_dict,
        "torch._utils._rebuild_tensor": _view,
        "torch._utils._rebuild_tensor_v2": _view,
        "torch._utils._rebuild_parameter": _first,
    }
    return Names(rebuild=rebuild, persistent=storage)


def _view(arguments: Sequence[Any]) -> Any:
    """The tensor that a call of torch's rebuild function describes; it must lie inside its storage."""
    match arguments:
        case (Storage() as storage, int(offset), tuple(shape), tuple(stride), *_):
            numbers = (offset, *shape, *stride)
            whole = all(type(each) is int and each >= 0 for each in numbers)
            if not whole or len(shape) != len(stride) or len(shape) > MAX_DIMENSIONS:
                raise DamagedPickle("a tensor has no valid shape")
            last = offset + sum((size - 1) * step for size, step in zip(shape, stride))
            if prod(shape) and (last >= storage.length or prod(shape) > storage.length):
                raise DamagedPickle("a tensor is larger than its storage")
            return View(storage, offset, shape, stride)
    return Inert("torch.Tensor")


def _first(arguments: Sequence[Any]) -> Any:
    """A parameter is its tensor."""
    return arguments[0] if arguments and isinstance(arguments[0], View) else Inert("torch.nn.Parameter")


# ---- the formats of torch.save ------------------------------------------------------------------------------------------

Contents = tuple[Any, Callable[[Storage], bytes]]


def _read_zip(file: Path) -> Contents:
    """The object in a zip file, and how its storages are read. Entries are not compressed, so none is larger than the file."""
    with zipfile.ZipFile(file) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        found = [name for name in entries if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(found) != 1:
            raise DamagedPickle("it has no data.pkl")
        folder = found[0].removesuffix("data.pkl")
        if f"{folder}constants.pkl" in entries:
            raise ArcvqError(f"{file}: is a TorchScript archive, which is a program: expected a checkpoint of tensors")
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries.values()):
            raise DamagedPickle("its entries are compressed")
        if any(max(entry.file_size, entry.compress_size) > file.stat().st_size for entry in entries.values()):
            raise DamagedPickle("an entry is larger than the file")
        if entries[found[0]].file_size > MAX_PICKLE:
            raise DamagedPickle(f"its pickle has more than {MAX_PICKLE >> 20} MiB")
        if f"{folder}byteorder" in entries and archive.read(f"{folder}byteorder") != b"little":
            raise DamagedPickle("its numbers are big-endian")
        root = read_pickle(BytesIO(archive.read(found[0])), _names({}))

    def read_storage(storage: Storage) -> bytes:
        entry = entries.get(f"{folder}data/{storage.key}")
        if entry is None:
            raise ValueError("its storage is missing")
        with zipfile.ZipFile(file) as archive:
            return archive.read(entry)

    return root, read_storage


def _read_legacy(file: Path) -> Contents:
    """The object in a file of the format before zip: pickles, the keys of the storages, and each storage after its length."""
    with file.open("rb") as opened:
        if not file.stat().st_size:
            raise DamagedPickle("it is empty")
        # Unlike a file, a memory map gives no more bytes than there are, whatever a pickle asks for.
        data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    storages: dict[str, Storage] = {}
    names = _names(storages)
    try:
        header = [read_pickle(data, names) for _ in range(3)]  # type: ignore[arg-type]
    except DamagedPickle:
        header = []
    if tuple(header[:2]) != LEGACY_NUMBERS:
        raise DamagedPickle("it is neither a zip file nor of the format before it")
    if not isinstance(header[2], dict) or header[2].get("little_endian") is not True:
        raise DamagedPickle("its numbers are big-endian")
    root, keys = (read_pickle(data, names) for _ in range(2))  # type: ignore[arg-type]
    positions, at = {}, data.tell()
    for key in keys if isinstance(keys, list) else []:
        storage = storages.get(key) if isinstance(key, str) else None
        if storage is None or storage.dtype is None:
            raise DamagedPickle("it has storages of no known type")
        if data[at : at + 8] != struct.pack("<q", storage.length):
            raise DamagedPickle("it is truncated")
        positions[key] = at + 8
        at += 8 + storage.length * storage.dtype.itemsize
    if at > len(data):
        raise DamagedPickle("it is truncated")

    def read_storage(storage: Storage) -> bytes:
        assert storage.dtype is not None
        begin = positions.get(storage.key)
        if begin is None:
            raise ValueError("its storage is missing")
        return data[begin : begin + storage.length * storage.dtype.itemsize]

    return root, read_storage
