"""Encodes a whole set of images once, and keeps the tokens or latents in a cache on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from arcvq import distributed
from arcvq.config import to_dict
from arcvq.data import Images, InMemoryImages, to_unit
from arcvq.data.augment import draw_windows
from arcvq.data.decoded import DecodedImages
from arcvq.errors import ArcvqError
from arcvq.storage import cache_folder, read_tensors, write_tensors
from arcvq.tokenizers.token_shards import tokenizer_fingerprint
from arcvq.tokenizers.tokenizer import Tokenizer

Kind = Literal["tokens", "latents"]
# Pixels of a chunk of images, and how many images it has at most.
CHUNK_PIXELS, CHUNK_IMAGES = 2**22, 1024
# Crops are drawn once and for all, independently of a training's seed.
CROP_SEED = 0


@dataclass(frozen=True)
class Variants:
    """How each image is encoded.

    flip   also mirrored left and right
    crop   the side of random square crops; None: whole images
    crops  how many of them
    """

    flip: bool = False
    crop: int | None = None
    crops: int = 1

    def __len__(self) -> int:
        return self.crops * (2 if self.flip else 1)

    def read(self, images: Images, index: Tensor) -> Iterator[Tensor]:
        """Yield each variant of the images `index` (b,), uint8 (b, C, H, W)."""
        for pixels in self._crops(images, index):
            yield pixels
            if self.flip:
                yield pixels.flip(-1)

    def _crops(self, images: Images, index: Tensor) -> Iterator[Tensor]:
        """Yield each crop of these images, or the images. Crops of files come from the whole image, as in a tokenizer's training."""
        if self.crop is None:
            yield images.gather(index)
            return
        for number in range(self.crops):
            windows = draw_windows(self.crop, CROP_SEED, number, index)
            if isinstance(images, DecodedImages):
                yield images.fetch(index, windows)[0]
            else:
                yield torch.stack([window.cut(pixels) for window, pixels in zip(windows, images.gather(index))])


def cached_values(
    tokenizer: Tokenizer,
    images: Images,
    kind: Kind,
    variants: Variants | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """The tokens (variants, N, h, w[, depth]) or latents (variants, N, D, h, w) of all images, from the cache or encoded now.

    Tokens are int16 where they fit, else int32; latents float16. With several processes the first one encodes.
    """
    variants = variants or Variants()
    if variants.crop is not None and variants.crop > min(images.height, images.width):
        raise ArcvqError(f"data.crop is {variants.crop}, but the images are {images.height}×{images.width}")
    file = cache_file(tokenizer, images, kind, variants)
    if file is None:
        return encode_all(tokenizer, images, kind, variants, progress)

    def write() -> bool:
        """Encode and write the file unless it is there and readable; whether it can be read now."""
        if _read(file) is None:
            values = encode_all(tokenizer, images, kind, variants, progress)
            with suppress(ArcvqError):  # without a cache only time is lost
                write_tensors(file, {"values": values})
        return _read(file) is not None

    values = _read(file) if distributed.on_first_process(write) else None
    return encode_all(tokenizer, images, kind, variants, progress) if values is None else values


def _read(file: Path) -> Tensor | None:
    """The values of a cache file; None if it is absent or damaged."""
    with suppress(ArcvqError):
        return read_tensors(file, "a cache").get("values")
    return None


@torch.no_grad()
def encode_all(
    tokenizer: Tokenizer,
    images: Images,
    kind: Kind,
    variants: Variants,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Encode every variant of every image."""
    small = tokenizer.quantizer.config.codebook_size <= 2**15
    dtype = torch.float16 if kind == "latents" else torch.int16 if small else torch.int32
    size = max(1, min(CHUNK_IMAGES, CHUNK_PIXELS // (images.height * images.width)))
    found: list[list[Tensor]] = [[] for _ in range(len(variants))]
    for index in torch.arange(len(images)).split(size):
        for parts, pixels in zip(found, variants.read(images, index)):
            unit = to_unit(pixels.to(tokenizer.device))
            values = tokenizer.encode(unit) if kind == "tokens" else encode_latents(tokenizer, unit)
            parts.append(values.to(dtype).cpu())
        if progress:
            progress(int(index[-1]) + 1, len(images))
    values = torch.stack([torch.cat(parts) for parts in found])
    if not values.isfinite().all():
        raise ArcvqError("the tokenizer's latents do not fit into float16: train the tokenizer with smaller norms")
    return values


def encode_latents(tokenizer: Tokenizer, images: Tensor) -> Tensor:
    """The latents (B, D, h, w) of images, before quantization."""
    size = tokenizer.batch_size(*images.shape[-2:])
    return torch.cat([tokenizer.latents(part) for part in images.split(size)])


def cache_file(tokenizer: Tokenizer, images: Images, kind: Kind, variants: Variants) -> Path | None:
    """The cache file of these values, named by a hash of all that they depend on; None without a cache."""
    folder, pixels = cache_folder(), images_fingerprint(images)
    if folder is None or pixels is None:
        return None
    size = [images.channels, images.height, images.width]
    about = [
        kind,
        tokenizer_fingerprint(tokenizer),
        to_dict(tokenizer.autoencoder.config),
        to_dict(tokenizer.quantizer.config),
        tokenizer.device.type,
        [variants.flip, variants.crop, variants.crops, *(["whole images"] if variants.crop else [])],
        size,
        pixels,
    ]
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
    return folder / kind / f"{digest[:32]}.safetensors"


def images_fingerprint(images: Images) -> str | None:
    """A hash of the images: of the pixels in memory, or of the files; None if there is none."""
    if isinstance(images, InMemoryImages):
        return hashlib.sha256(images.pixels.cpu().contiguous().numpy().tobytes()).hexdigest()
    return images.fingerprint() if isinstance(images, DecodedImages) else None
