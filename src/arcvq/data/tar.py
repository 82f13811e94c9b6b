"""Tar files in WebDataset's layout: the files of a sample lie next to each other and share its key, the name up to the first dot.

Written here, the same files give the same bytes: no times, no owners. Only uncompressed tar files are read.
"""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from arcvq.errors import ArcvqError

BLOCK = tarfile.BLOCKSIZE  # a header, and the unit to which files are padded
END = bytes(2 * BLOCK)  # the two empty blocks that end an archive
KEY = re.compile(r"((?:.*/)?[^./]+)\.([^/]+)")
# How the files that programs compress with begin.
COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


@dataclass(frozen=True)
class Member:
    """A file in a tar: its sample's key, the rest of its name, where its content lies, and a checksum of its header."""

    key: str
    ending: str
    offset: int
    length: int
    header: int


def pack(name: str, content: bytes) -> bytes:
    """A file as it lies in a tar: header, content, padding."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o444
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict") + content + bytes(-len(content) % BLOCK)


def read_members(path: Path) -> Iterator[Member]:
    """Yield the files of a tar that belong to samples, from their headers alone. A damaged or truncated tar is an error."""
    end = 0
    try:
        check_uncompressed(path)
        size = path.stat().st_size
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as archive:
            for info in archive:
                end = info.offset_data + info.size + -info.size % BLOCK
                if not info.offset_data <= end <= size:  # before anything of this length is read
                    raise ArcvqError(f"{path}: the tar file is truncated; write or fetch it again")
                found = KEY.fullmatch(info.name)
                if info.isreg() and not info.issparse() and found and not found[1].startswith("__"):
                    header = os.pread(file.fileno(), BLOCK, info.offset_data - BLOCK)
                    yield Member(found[1], found[2], info.offset_data, info.size, crc32(header))
                archive.members = []  # type: ignore[attr-defined]  # else every header stays in memory
            if os.pread(file.fileno(), BLOCK, end) != END[:BLOCK]:
                raise ArcvqError(f"{path}: the tar file is truncated; write or fetch it again")
    except tarfile.TarError as error:
        raise ArcvqError(f"{path}: damaged, truncated or not a tar file ({error}); write or fetch it again") from None
    except OSError as error:
        raise ArcvqError(f"{path}: cannot be read ({error.strerror or error})") from None


def check_uncompressed(path: Path) -> None:
    """Raise if a tar file is compressed: nothing can be read from its middle."""
    with path.open("rb") as file:
        begin = file.read(6)
    for magic, program in COMPRESSED.items():
        if begin.startswith(magic):
            raise ArcvqError(f"{path}: is compressed with {program}, and only plain .tar files are read: unpack it")


def read_content(path: Path, offset: int, length: int, header: int) -> bytes:
    """The content of a file in a tar, from its place; an error if another file lies there now."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            content = os.pread(descriptor, BLOCK + length, offset - BLOCK)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ArcvqError(f"{path}: the shard cannot be read ({error.strerror or error})") from None
    if len(content) != BLOCK + length or crc32(content[:BLOCK]) != header:
        raise ArcvqError(f"{path}: the shard was changed while in use; start again")
    return content[BLOCK:]
