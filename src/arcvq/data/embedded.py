"""The sample data set in the package: 12,000 images of Fashion-MNIST, so that everything runs without a network."""

import hashlib
import lzma
from functools import cache
from importlib import resources

import numpy as np
import torch

from arcvq.data.class_names import CLASS_NAMES
from arcvq.data.images import InMemoryImages
from arcvq.errors import ArcvqError

FILE = "fashion-mnist-12000.xz"
SHA256 = "83c843a21c59d285523a1bb4d2f9709e9a50ff91f45e71e29d43dea0cc59e892"
COUNTS = {"train": 10_000, "test": 2_000}
SIDE = 28


@cache
def load_sample(split: str) -> InMemoryImages:
    """The train or test split of the embedded sample, with labels, decoded once per process. sample/README.md has the format."""
    content = sample_bytes()
    total = sum(COUNTS.values())
    first, last = (0, COUNTS["train"]) if split == "train" else (COUNTS["train"], total)
    labels = np.frombuffer(content, dtype=np.uint8, count=total)[first:last]
    pixels = np.frombuffer(content, dtype=np.uint8, offset=total).reshape(total, 1, SIDE, SIDE)[first:last]
    numbers = torch.from_numpy(labels.astype(np.int64))
    return InMemoryImages("sample", torch.from_numpy(pixels.copy()), numbers, CLASS_NAMES["sample"])


@cache
def sample_bytes() -> bytes:
    """The decompressed bytes of the embedded sample; an error if the file in the package has another SHA-256."""
    compressed = (resources.files("arcvq.data") / "sample" / FILE).read_bytes()
    if hashlib.sha256(compressed).hexdigest() != SHA256:
        raise ArcvqError(f"the embedded sample {FILE} is damaged; reinstall arcvq")
    return lzma.decompress(compressed)
