"""Build the embedded sample from Fashion-MNIST's idx files: python tests/data/build_sample.py ROOT OUT

ROOT holds FashionMNIST/raw; OUT is the file to write. The same input gives the same bytes.
"""

import hashlib
import lzma
import sys
from pathlib import Path

import numpy as np

from arcvq.data import load_images

PER_CLASS = {"train": 1_000, "test": 200}
# Written out in full, so that a change of the library's presets cannot change the file.
FILTERS = [
    {
        "id": lzma.FILTER_LZMA2,
        "dict_size": 1 << 24,
        "lc": 3,
        "lp": 0,
        "pb": 2,
        "mode": lzma.MODE_NORMAL,
        "nice_len": 273,
        "mf": lzma.MF_BT4,
        "depth": 512,
    }
]


def sample_content(root: Path) -> bytes:
    """All labels, then all pixels; training images first."""
    labels, pixels = [], []
    for split, per_class in PER_CLASS.items():
        images = load_images("fashion-mnist", split=split, root=root, download=False)
        classes = images.labels.numpy()
        keep = np.sort(np.concatenate([np.flatnonzero(classes == label)[:per_class] for label in range(10)]))
        assert len(keep) == 10 * per_class, f"the {split} split has too few images of some class"
        labels.append(classes[keep].astype(np.uint8))
        pixels.append(images.pixels.numpy()[keep])
    return np.concatenate(labels).tobytes() + np.concatenate(pixels).tobytes()


if __name__ == "__main__":
    root, out = map(Path, sys.argv[1:])
    compressed = lzma.compress(sample_content(root), format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC64, filters=FILTERS)
    out.write_bytes(compressed)
    print(f"{out}: {len(compressed)} bytes, sha256 {hashlib.sha256(compressed).hexdigest()}")
