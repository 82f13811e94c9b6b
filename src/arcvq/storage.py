"""Files that are whole or absent: written beside their place, flushed to disk, then renamed."""

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

# What an .npz may hold when unpacked: a small file can announce any size.
ARRAYS_LIMIT = 1 << 30


def cache_folder() -> Path | None:
    """Where results are kept that can be computed again: ARCVQ_CACHE, or a folder in the home folder; None without a home."""
    try:
        return Path(os.environ.get("ARCVQ_CACHE") or Path.home() / ".cache" / "arcvq")
    except RuntimeError:
        return None


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A temporary folder that becomes `path` when the block ends well, and vanishes when it does not."""
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                _flush(file)
        temporary.chmod(0o755)
        _replace(temporary, path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        if temporary is not None and temporary.exists():
            shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def locked(file: Path, who: str) -> Iterator[None]:
    """One at a time, named by `who`, writes to the folder of `file`. The lock is the process's: a killed one leaves none behind."""
    import fcntl  # not everywhere, and not needed to read

    try:
        lock = file.open("a")
    except OSError as error:
        raise cannot_write(file.parent, error) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArcvqError(
                f"{file.parent}: another {who} is writing here: wait for it, or choose another --out"
            ) from None
        yield


def check_file(path: Path) -> None:
    """A folder where a file should go is told before the work whose result would go there, and so is what `check_folder` tells."""
    _check_name(path)
    check_folder(path.parent)


def _check_name(path: Path) -> None:
    if not path.name or path.is_dir():
        raise ArcvqError(f"{path}: is a folder; expected the name of a file")


def check_folder(path: Path) -> None:
    """A file where a folder should go, or one above it, is told as early, and a folder that nothing may be written into."""
    there = next((each for each in (path, *path.parents) if each.exists()), None)
    if there is not None and not there.is_dir():
        raise ArcvqError(f"{there}: is a file; expected a folder")
    if there is not None and not os.access(there, os.W_OK | os.X_OK):
        raise cannot_write(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def write_bytes(path: Path, data: bytes) -> None:
    """One file, whole or absent."""
    _check_name(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        _flush(temporary)
        temporary.replace(path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        with suppress(OSError):  # its folder may never have been one
            temporary.unlink(missing_ok=True)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    write_bytes(path, (json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ArcvqError(f"{path}: not readable as text in UTF-8: {error}") from None


def read_json(path: Path, what: str) -> dict[str, Any]:
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
    plain = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    write_bytes(path, safetensors.torch.save(plain))


def read_tensors(path: Path, what: str) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(path.read_bytes())
    except FileNotFoundError:
        raise ArcvqError(f"{path.parent}: not {what}: {path.name} is missing") from None
    except (SafetensorError, OSError) as error:
        raise ArcvqError(f"{path}: truncated or not a safetensors file ({error})") from None


def read_arrays(path: Path, what: str) -> dict[str, np.ndarray]:
    """The arrays of an .npz of at most ARRAYS_LIMIT bytes, unpacked. Nothing in it is executed."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(file.file_size for file in archive.infolist())  # no more than this is ever unpacked
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
    except Exception as error:  # numpy and zipfile raise a dozen kinds for a damaged archive
        raise ArcvqError(f"{path}: not a readable .npz {what} ({type(error).__name__})") from None


def cannot_write(path: Path, error: OSError) -> ArcvqError:
    """One line for a disk that is full, a folder that is not ours, and the rest."""
    if error.errno == errno.ENOSPC:
        return ArcvqError(f"{path}: the disk is full: free some space or choose another --out")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ArcvqError(f"{path}: no permission to write there: choose another --out")
    return ArcvqError(f"{path}: cannot be written: {error.strerror or error}")


def _replace(temporary: Path, path: Path) -> None:
    """Rename over an existing folder too. A kill between the two renames leaves the old one aside, as .NAME.old.*/NAME."""
    if path.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
        path.rename(old / path.name)
        temporary.rename(path)
        shutil.rmtree(old, ignore_errors=True)
    else:
        temporary.rename(path)
    _flush(path.parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
