"""The pixel variance of image files, cached on disk because it needs all files decoded."""

from __future__ import annotations

import hashlib
import json
import math
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import PIL

from arcvq.data.images import compute_pixel_variance
from arcvq.errors import ArcvqError
from arcvq.storage import cache_folder, read_json, write_json

if TYPE_CHECKING:
    from arcvq.data.folder import FolderImages


def cached_variance(images: FolderImages) -> float:
    """The pixel variance from the cache on disk, or computed and then cached."""
    file = variance_file(images)
    if file is None:
        return compute_pixel_variance(images)
    with suppress(ArcvqError, OSError):  # absent, damaged or not readable
        cached = read_json(file, "a pixel variance").get("pixel_variance")
        if isinstance(cached, float) and math.isfinite(cached) and cached >= 0:
            return cached
    variance = compute_pixel_variance(images)
    with suppress(ArcvqError, OSError):  # without a cache only time is lost
        write_json(file, {"pixel_variance": variance, "images": len(images)})
    return variance


def variance_file(images: FolderImages) -> Path | None:
    """The cache file for these images, named by a hash of paths, sizes, times and decoding options; None without a cache."""
    folder = cache_folder()
    if folder is None or not images.paths:
        return None
    decoded = [images.channels, images.image_size, images.height, images.width, PIL.__version__]
    digest = hashlib.sha256(json.dumps(decoded).encode())
    root = os.path.commonpath([path.parent for path in images.paths])
    try:
        for path in images.paths:
            status = path.stat()
            digest.update(json.dumps([os.path.relpath(path, root), status.st_size, status.st_mtime_ns]).encode())
    except OSError:
        return None
    return folder / "variance" / f"{digest.hexdigest()[:32]}.json"
