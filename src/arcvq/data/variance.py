"""The pixel variance of image files, cached on disk because it needs all files decoded."""

from __future__ import annotations

import hashlib
import json
import math
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import PIL

from arcvq.data.images import compute_pixel_variance
from arcvq.errors import ArcvqError
from arcvq.storage import cache_folder, read_json, write_json

if TYPE_CHECKING:
    from arcvq.data.decoded import DecodedImages


def cached_variance(images: DecodedImages) -> float:
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


def variance_file(images: DecodedImages) -> Path | None:
    """The cache file for these images, named by a hash of the files and of how they are decoded; None without a cache."""
    folder, files = cache_folder(), images.fingerprint()
    if folder is None or files is None:
        return None
    decoded = [images.channels, images.image_size, images.height, images.width, images.on_error, PIL.__version__, files]
    digest = hashlib.sha256(json.dumps(decoded).encode())
    return folder / "variance" / f"{digest.hexdigest()[:32]}.json"
