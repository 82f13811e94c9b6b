"""MNIST and Fashion-MNIST from idx files, plain or gzipped, in torchvision's folder layout."""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
import torch

from arcvq.data.images import InMemoryImages
from arcvq.errors import ArcvqError

# torchvision's folder for each set.
FOLDERS = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}
PREFIXES = {"train": "train", "test": "t10k"}
UNSIGNED_BYTES = 0x08
# More bytes than any published set has; a small .gz can unpack to any size.
MAX_BYTES = 1 << 30


def expected_files(name: str, split: str) -> list[str]:
    """Paths of a split's image and label file below the data root; each may also end in .gz."""
    prefix = f"{FOLDERS[name]}/raw/{PREFIXES[split]}"
    return [f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"]


def find_idx_files(root: Path, name: str, split: str) -> list[Path] | None:
    """The existing image and label file of a split; None if either is absent."""
    found = []
    for relative in expected_files(name, split):
        candidates = [root / relative, root / f"{relative}.gz"]
        present = next((path for path in candidates if path.is_file()), None)
        if present is None:
            return None
        found.append(present)
    return found


def read_idx_images(name: str, image_path: Path, label_path: Path) -> InMemoryImages:
    """Read images and labels from a pair of idx files."""
    pixels = read_idx(image_path, dimensions=3)  # (N, H, W)
    labels = read_idx(label_path, dimensions=1)  # (N,)
    if len(pixels) != len(labels):
        raise ArcvqError(
            f"{image_path} has {len(pixels)} images but {label_path} has {len(labels)} labels; fetch both files again"
        )
    return InMemoryImages(name, torch.from_numpy(pixels).unsqueeze(1), torch.from_numpy(labels).long())


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Read an idx file of unsigned bytes: two zero bytes, the type, the number of dimensions, their sizes, the data."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(MAX_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise ArcvqError(f"cannot read {path} ({error}); delete it and fetch it again") from None
    header_bytes = 4 + 4 * dimensions
    magic = bytes([0, 0, UNSIGNED_BYTES, dimensions])
    if content[:4] != magic or len(content) < header_bytes:
        raise ArcvqError(
            f"{path} is not an idx file of {dimensions} dimensions (it begins {content[:4].hex()}, expected "
            f"{magic.hex()}); delete it and fetch it again"
        )
    shape = struct.unpack(f">{dimensions}I", content[4:header_bytes])
    expected = header_bytes + int(np.prod(shape, dtype=np.int64))
    if len(content) != expected or shape[0] == 0:
        raise ArcvqError(
            f"{path} holds {len(content)} bytes, but its header says {expected} for {shape[0]} items; "
            "delete it and fetch it again"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header_bytes).reshape(shape).copy()
