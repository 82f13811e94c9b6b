"""Atomic writes: a file or folder is written under a temporary name, flushed to disk, then renamed."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from arcvq.errors import ArcvqError

# Bytes that an .npz may have when unpacked: a small file can claim any size.
ARRAYS_LIMIT = 1 << 30


def cache_folder() -> Path | None:
    """The folder for cached results: ARCVQ_CACHE, or ~/.cache/arcvq; None without a home folder."""
    try:
        return Path(os.environ.get("ARCVQ_CACHE") or Path.home() / ".cache" / "arcvq")
    except RuntimeError:
        return None


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces `path` when the block ends; after an error it is deleted."""
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                _sync_to_disk(file)
        temporary.chmod(0o755)
        _move_folder(temporary, path)
    except OSError as error:
        raise write_error(path, error) from error
    finally:
        if temporary is not None and temporary.exists():
            shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def partial_folder(path: Path, who: str) -> Iterator[Path]:
    """Yield the empty folder .NAME.partial beside `path`, which becomes `path` when the block ends; after an error it is deleted.

    For large results: what a kill left there is deleted by the next `who` (e.g. "sharding"), and two at once are refused.
    """
    partial = path.with_name(f".{path.name}.partial")
    lock = partial / "lock"
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ArcvqError(f"{path}: exists and is not empty: choose another --out")
        partial.mkdir(parents=True, exist_ok=True)
        with folder_lock(lock, who):
            try:
                for left in partial.iterdir():
                    if left != lock:
                        shutil.rmtree(left) if left.is_dir() else left.unlink()
                yield partial
                for file in partial.rglob("*"):
                    _sync_to_disk(file)
                partial.rename(path)
                (path / lock.name).unlink()
                _sync_to_disk(path.parent)
            finally:
                if partial.exists():
                    shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise write_error(path, error) from error


@contextmanager
def folder_lock(file: Path, who: str) -> Iterator[None]:
    """Lock the folder of `file` for this process; raises if another process, a `who` (e.g. "training"), has the lock."""
    import fcntl  # missing on Windows, and only needed to write

    try:
        lock = file.open("a")
    except OSError as error:
        raise write_error(file.parent, error) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArcvqError(
                f"{file.parent}: another {who} is writing here: wait for it, or choose another --out"
            ) from None
        yield


def check_writable_file(path: Path) -> None:
    """Raise before long work if `path` is a folder or its folder cannot be written to."""
    _check_not_folder(path)
    check_writable_folder(path.parent)


def check_other_file(path: Path, *inputs: Path) -> None:
    """Raise before long work if writing `path` would overwrite one of these inputs."""
    for each in inputs:
        if path.exists() and each.exists() and path.samefile(each):
            raise ArcvqError(f"{path}: would overwrite the input: choose another --out")


def check_empty_folder(path: Path) -> None:
    """Raise before long work if `path` cannot be written to, or holds anything."""
    check_writable_folder(path)
    held = next(path.iterdir(), None) if path.is_dir() else None
    if held is not None:
        raise ArcvqError(f"{path}: is not empty ({held.name}): choose another --out, or empty it")


def _check_not_folder(path: Path) -> None:
    """Raise if `path` is a folder, or has no file name."""
    if not path.name or path.is_dir():
        raise ArcvqError(f"{path}: is a folder; expected the name of a file")


def check_writable_folder(path: Path) -> None:
    """Raise before long work if `path` or a folder above it is a file, or may not be written to."""
    existing = next((each for each in (path, *path.parents) if each.exists()), None)
    if existing is not None and not existing.is_dir():
        raise ArcvqError(f"{existing}: is a file; expected a folder")
    if existing is not None and not os.access(existing, os.W_OK | os.X_OK):
        raise write_error(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically: readers see the old file or the whole new one."""
    _check_not_folder(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        _sync_to_disk(temporary)
        temporary.replace(path)
    except OSError as error:
        raise write_error(path, error) from error
    finally:
        with suppress(OSError):  # the parent may not be a folder
            temporary.unlink(missing_ok=True)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write a mapping as indented JSON, atomically; NaN and infinity are errors."""
    write_bytes(path, (json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def read_text(path: Path) -> str:
    """Read a UTF-8 text file."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ArcvqError(f"{path}: not readable as text in UTF-8: {error}") from None


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Read a JSON object. If the file is missing, the error says that its folder is not `what`, e.g. "a saved tokenizer"."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArcvqError(f"{path.parent}: not {what}: {path.name} is missing") from None
    except (ValueError, RecursionError, OSError) as error:
        raise ArcvqError(f"{path}: not readable as JSON: {error}") from None
    if not isinstance(data, dict):
        raise ArcvqError(f"{path}: expected a JSON object, got {type(data).__name__}")
    return data


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write named tensors as a safetensors file, atomically."""
    plain = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    write_bytes(path, safetensors.torch.save(plain))


def read_tensors(path: Path, what: str) -> dict[str, Tensor]:
    """Read a safetensors file to the CPU. `what` as in `read_json`."""
    try:
        return safetensors.torch.load(path.read_bytes())
    except FileNotFoundError:
        raise ArcvqError(f"{path.parent}: not {what}: {path.name} is missing") from None
    except (SafetensorError, OSError) as error:
        raise ArcvqError(f"{path}: truncated or not a safetensors file ({error})") from None


def read_arrays(path: Path, what: str) -> dict[str, np.ndarray]:
    """Read the arrays of an .npz file of at most ARRAYS_LIMIT unpacked bytes. Pickles are refused, so no code runs."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(file.file_size for file in archive.infolist())  # zipfile unpacks no more than this
        if size > ARRAYS_LIMIT:
            raise ArcvqError(
                f"{path}: holds {size / 2**30:.1f} GiB when unpacked, at most {ARRAYS_LIMIT / 2**30:.0f} GiB are read: split it"
            )
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except FileNotFoundError:
        raise ArcvqError(f"{path}: no such {what}") from None
    except ArcvqError:
        raise
    except Exception as error:  # numpy and zipfile raise many kinds for a damaged archive
        raise ArcvqError(f"{path}: not a readable .npz {what} ({type(error).__name__})") from None


def write_error(path: Path, error: OSError) -> ArcvqError:
    """The one-line ArcvqError for a failed write: full disk, no permission, or another reason."""
    if error.errno == errno.ENOSPC:
        return ArcvqError(f"{path}: the disk is full: free some space or choose another --out")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ArcvqError(f"{path}: no permission to write there: choose another --out")
    return ArcvqError(f"{path}: cannot be written: {error.strerror or error}")


def _move_folder(temporary: Path, path: Path) -> None:
    """Rename `temporary` to `path`, and delete an older folder there.

    A kill between the two renames leaves the old folder as .NAME.old.*/NAME.
    """
    if path.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
        path.rename(old / path.name)
        temporary.rename(path)
        shutil.rmtree(old, ignore_errors=True)
    else:
        temporary.rename(path)
    _sync_to_disk(path.parent)


def _sync_to_disk(path: Path) -> None:
    """Flush a file or folder to disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
