"""Rate and distortion: pictures compressed by a generator's tokens, beside JPEG, WebP and AVIF."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, features
from torch import Tensor

from arcvq.data import read_image, to_uint8, to_unit
from arcvq.errors import ArcvqError
from arcvq.metrics.image import psnr
from arcvq.priors import AutoregressivePrior, Generator
from arcvq.priors.compression import compress, decompress
from arcvq.tokenizers.files import find_images

# The qualities of each format, from the smallest files up.
QUALITIES = {"JPEG": (1, 5, 10, 20, 40, 60, 80), "WEBP": (0, 5, 10, 20, 40, 60, 80), "AVIF": (0, 5, 10, 20, 40, 60, 80)}


def load_model_and_pictures(model: str, data: str, limit: int | None) -> tuple[Generator, list[Tensor]]:
    """The generator, and picture files of any size as uint8 (C, H, W)."""
    if not data.startswith("folder:"):
        raise ArcvqError(f"the suite compression reads pictures: expected --data folder:PATH, got {data}")
    generator = Generator.from_pretrained(model)
    paths = list(find_images([Path(data.removeprefix("folder:")).expanduser()]).values())
    return generator, [read_image(path, generator.tokenizer.channels) for path in paths[:limit]]


def compression_rows(generator: Generator, pictures: Sequence[Tensor]) -> Iterator[dict[str, Any]]:
    """A row per format and quality: mean bits per pixel, with all headers, and mean PSNR of the decoded pictures."""
    for kind, qualities in QUALITIES.items():
        if not features.check("jpg" if kind == "JPEG" else kind.lower()):
            yield {"task": "compression", "name": kind, "missing": f"Pillow was built without {kind}"}
            continue
        for quality in qualities:
            found = [_by_pillow(picture, kind, quality) for picture in pictures]
            yield _row(f"{kind} {quality}", pictures, found) | {"kind": kind, "quality": quality}
    modes = ["portable", *(["prior"] if isinstance(generator.prior, AutoregressivePrior) else [])]
    for mode in modes:
        written = [compress(generator, to_unit(picture), mode=mode) for picture in pictures]  # type: ignore[arg-type]
        found = [(len(each.content), to_uint8(decompress(generator, each.content))) for each in written]
        pixels = [picture.shape[1] * picture.shape[2] for picture in pictures]
        payload = [each.payload_bits / count for each, count in zip(written, pixels)]
        row = _row(f"arcvq {mode}", pictures, found) | {
            "kind": "arcvq",
            "mode": mode,
            "payload": float(np.mean(payload)),
        }
        costs = [each.cross_entropy_bits for each in written]
        if mode == "prior":
            row["cross_entropy"] = float(
                np.mean([cost / count for cost, count in zip(costs, pixels) if cost is not None])
            )
        yield row


def _by_pillow(picture: Tensor, kind: str, quality: int) -> tuple[int, Tensor]:
    """The bytes of a picture in this format, and the decoded picture."""
    array = picture[0].numpy() if len(picture) == 1 else picture.permute(1, 2, 0).numpy()
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(array)).save(file, kind, quality=quality)
    with Image.open(file) as opened:
        decoded = np.array(opened.convert("L" if len(picture) == 1 else "RGB"))
    pixels = torch.from_numpy(decoded)
    return len(file.getvalue()), pixels[None] if len(picture) == 1 else pixels.permute(2, 0, 1)


def _row(name: str, pictures: Sequence[Tensor], found: Sequence[tuple[int, Tensor]]) -> dict[str, Any]:
    """Means over the pictures."""
    bits = [8 * size / (picture.shape[1] * picture.shape[2]) for picture, (size, _) in zip(pictures, found)]
    quality = [psnr(picture[None] / 255, copy[None] / 255).item() for picture, (_, copy) in zip(pictures, found)]
    return {
        "task": "compression",
        "name": name,
        "bits_per_pixel": float(np.mean(bits)),
        "psnr": float(np.mean(quality)),
    }
