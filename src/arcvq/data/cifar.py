"""CIFAR-10, from the official binary files, or from the pickled ones through torchvision, which checks their md5 first."""

from pathlib import Path

import numpy as np
import torch
import torchvision

from arcvq.data.images import InMemoryImages
from arcvq.errors import ArcvqError

BINARY_FOLDER = "cifar-10-batches-bin"
PICKLED_FOLDER = "cifar-10-batches-py"
BINARY_FILES = {"train": [f"data_batch_{index}.bin" for index in range(1, 6)], "test": ["test_batch.bin"]}
IMAGES_PER_FILE = 10_000
CLASSES = 10
SHAPE = (3, 32, 32)
RECORD = 1 + 3 * 32 * 32  # a label, then the red, green and blue planes


def expected_files(split: str) -> list[str]:
    """Paths of the binary files of a split, below the data root."""
    return [f"{BINARY_FOLDER}/{name}" for name in BINARY_FILES[split]]


def load_cifar(root: Path, split: str) -> InMemoryImages | None:
    """Load the binary or else the pickled version below `root`; None if there is neither. Reading the binary one runs no code."""
    if (root / BINARY_FOLDER).is_dir():
        return read_binary_files([root / BINARY_FOLDER / name for name in BINARY_FILES[split]])
    if (root / PICKLED_FOLDER).is_dir():
        return read_pickled_files(root, split)
    return None


def read_binary_files(paths: list[Path]) -> InMemoryImages:
    """Read and check CIFAR-10's binary files."""
    pixels, labels = [], []
    for path in paths:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ArcvqError(f"cannot read {path} ({error.strerror}); fetch CIFAR-10's binary version again") from None
        if len(content) != IMAGES_PER_FILE * RECORD:
            raise ArcvqError(
                f"{path} holds {len(content)} bytes, expected {IMAGES_PER_FILE * RECORD}; delete it and fetch it again"
            )
        records = np.frombuffer(content, dtype=np.uint8).reshape(IMAGES_PER_FILE, RECORD)
        if int(records[:, 0].max()) >= CLASSES:
            raise ArcvqError(
                f"{path} has a label {int(records[:, 0].max())}, expected 0 to 9; delete it and fetch it again"
            )
        labels.append(torch.from_numpy(records[:, 0].astype(np.int64)))
        pixels.append(torch.from_numpy(records[:, 1:].reshape(IMAGES_PER_FILE, *SHAPE).copy()))
    return InMemoryImages("cifar10", torch.cat(pixels), torch.cat(labels))


def read_pickled_files(root: Path, split: str) -> InMemoryImages:
    """Read CIFAR-10's pickled files through torchvision."""
    try:
        # torchvision compares each file's md5 with the published one before it unpickles anything.
        dataset = torchvision.datasets.CIFAR10(root, train=split == "train", download=False)
    except (RuntimeError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ArcvqError(f"cannot read {root / PICKLED_FOLDER} ({reason}); delete it and fetch it again") from None
    pixels = torch.from_numpy(np.ascontiguousarray(dataset.data.transpose(0, 3, 1, 2)))  # (N, 3, 32, 32)
    return InMemoryImages("cifar10", pixels, torch.tensor(dataset.targets, dtype=torch.int64))
