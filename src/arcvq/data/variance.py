"""The pixel variance of image files, kept on disk: computing it decodes every one of them."""

from __future__ import annotations

import hashlib
import json
import math
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import PIL

from arcvq.data.images import variance_of
from arcvq.errors import ArcvqError
from arcvq.storage import cache_folder, read_json, write_json

if TYPE_CHECKING:
    from arcvq.data.folder import FolderImages


def cached_variance(images: FolderImages) -> float:
    """The variance that an earlier run computed, or a new one, kept for the next run."""
    file = variance_file(images)
    if file is None:
        return variance_of(images)
    with suppress(ArcvqError, OSError):  # absent, damaged, or in a folder that is not ours
        found = read_json(file, "a pixel variance").get("pixel_variance")
        if isinstance(found, float) and math.isfinite(found) and found >= 0:
            return found
    variance = variance_of(images)
    with suppress(ArcvqError, OSError):  # without a place for it, only time is lost
        write_json(file, {"pixel_variance": variance, "images": len(images)})
    return variance


def variance_file(images: FolderImages) -> Path | None:
    """Named by the relative paths, sizes and times of the files, and by how they are decoded. None where a file cannot be asked."""
    folder = cache_folder()
    if folder is None or not images.paths:
        return None
    decoded = [images.channels, images.image_size, images.height, images.width, PIL.__version__]
    digest = hashlib.sha256(json.dumps(decoded).encode())
    root = os.path.commonpath([path.parent for path in images.paths])
    try:
        for path in images.paths:
            about = path.stat()
            digest.update(json.dumps([os.path.relpath(path, root), about.st_size, about.st_mtime_ns]).encode())
    except OSError:
        return None
    return folder / "variance" / f"{digest.hexdigest()[:32]}.json"
