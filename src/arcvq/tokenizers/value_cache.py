"""Encodes a whole set of images once, and keeps the tokens or latents in a cache on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
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

    def read(self, images: Images, index: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each variant of the images `index` (b,), uint8 (b, C, H, W), and which images these are: others where images were
        skipped."""
        for pixels, used in self._crops(images, index):
            yield pixels, used
            if self.flip:
                yield pixels.flip(-1), used

    def _crops(self, images: Images, index: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each crop of these images, or the images. Crops of files come from the whole image, as in a tokenizer's training."""
        for number in range(self.crops):
            windows = None if self.crop is None else draw_windows(self.crop, CROP_SEED, number, index)
            if isinstance(images, DecodedImages):
                yield images.fetch(index, windows)
                continue
            pixels = images.gather(index)
            if windows is not None:
                pixels = torch.stack([window.cut(each) for window, each in zip(windows, pixels)])
            yield pixels, index


@dataclass(frozen=True)
class Encoded:
    """What a tokenizer makes of a set of N images.

    values   tokens (variants, N, h, w[, depth]), int16 where they fit, else int32; or latents (variants, N, D, h, w), float16
    used     int64 (N,): the image that each is of; another one where an image could not be read
    skipped  the images that could not be read: path → reason
    """

    values: Tensor
    used: Tensor
    skipped: dict[str, str]

    def to_tensors(self) -> dict[str, Tensor]:
        """The content of a cache file."""
        skipped = torch.frombuffer(bytearray(json.dumps(self.skipped).encode()), dtype=torch.uint8)
        tensors = {"values": self.values, "used": self.used, "skipped": skipped}
        return {**tensors, "checksum": _checksum(tensors)}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> Encoded:
        """Read what `to_tensors` gave; an error if something else is there."""
        checksum = tensors.pop("checksum", None)
        if sorted(tensors) != ["skipped", "used", "values"] or checksum is None:
            raise ArcvqError("a cache of another version")
        if not torch.equal(checksum, _checksum(tensors)):
            raise ArcvqError("the checksum does not match")
        return cls(tensors["values"], tensors["used"], json.loads(tensors["skipped"].numpy().tobytes()))


def cached_values(
    tokenizer: Tokenizer,
    images: Images,
    kind: Kind,
    variants: Variants | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Encoded:
    """The tokens or latents of all images, from the cache or encoded now. With several processes the first one encodes."""
    variants = variants or Variants()
    if variants.crop is not None and variants.crop > min(images.height, images.width):
        raise ArcvqError(f"data.crop is {variants.crop}, but the images are {images.height}×{images.width}")
    file, own = cache_file(tokenizer, images, kind, variants), None

    def make() -> bool:
        """Read or encode the values on the first process; whether the others can read them."""
        nonlocal own
        assert file is not None
        own = _read(file, tokenizer, images, kind, variants)
        if own is None:
            own = encode_all(tokenizer, images, kind, variants, progress)
            try:
                write_tensors(file, own.to_tensors())
            except ArcvqError:  # without a cache only time is lost
                return False
        return True

    readable = file is not None and distributed.on_first_process(make)
    if own is None and readable and file is not None:
        own = _read(file, tokenizer, images, kind, variants)
    return encode_all(tokenizer, images, kind, variants, progress) if own is None else own


def _read(file: Path, tokenizer: Tokenizer, images: Images, kind: Kind, variants: Variants) -> Encoded | None:
    """The content of a cache file; None if it is absent, damaged, or not what encoding would give."""
    try:
        found = Encoded.from_tensors(read_tensors(file, "a cache"))
    except ArcvqError:
        return None
    shape, dtype = values_like(tokenizer, images, kind, variants)
    count, codes = len(images), tokenizer.quantizer.config.codebook_size
    if found.values.shape != shape or found.values.dtype != dtype:
        return None
    if found.used.shape != (count,) or found.used.dtype != torch.int64 or not _within(found.used, count):
        return None
    if not (found.values.isfinite().all() if kind == "latents" else _within(found.values, codes)):
        return None
    # Where no image may be skipped, encoding says which cannot be read.
    return None if found.skipped and images.skipped is None else found


def _within(values: Tensor, end: int) -> bool:
    """Whether all values are from 0 to below `end`."""
    low, high = values.aminmax()
    return int(low) >= 0 and int(high) < end


def _checksum(tensors: dict[str, Tensor]) -> Tensor:
    """SHA-256 of named tensors, uint8 (32,)."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy().data)
    return torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)


def values_like(
    tokenizer: Tokenizer, images: Images, kind: Kind, variants: Variants
) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and type of the values of all images."""
    sides = (variants.crop, variants.crop) if variants.crop else (images.height, images.width)
    height, width = (side // tokenizer.downsampling for side in sides)
    quantizer = tokenizer.quantizer
    if kind == "latents":
        return (len(variants), len(images), quantizer.dim, height, width), torch.float16
    levels = (quantizer.tokens_per_position,) if quantizer.tokens_per_position > 1 else ()
    dtype = torch.int16 if quantizer.config.codebook_size <= 2**15 else torch.int32
    return (len(variants), len(images), height, width, *levels), dtype


@torch.no_grad()
def encode_all(
    tokenizer: Tokenizer,
    images: Images,
    kind: Kind,
    variants: Variants,
    progress: Callable[[int, int], None] | None = None,
) -> Encoded:
    """Encode every variant of every image."""
    shape, dtype = values_like(tokenizer, images, kind, variants)
    values, used = torch.empty(shape, dtype=dtype), torch.arange(len(images))
    size = max(1, min(CHUNK_IMAGES, CHUNK_PIXELS // (images.height * images.width)))
    for index in torch.arange(len(images)).split(size):
        part = slice(int(index[0]), int(index[-1]) + 1)
        for number, (pixels, found) in enumerate(variants.read(images, index)):
            if number and not torch.equal(found, used[part]):
                raise ArcvqError(f"{images.name}: files changed while they were encoded: start again")
            used[part] = found
            unit = to_unit(pixels.to(tokenizer.device))
            made = tokenizer.encode(unit) if kind == "tokens" else encode_latents(tokenizer, unit)
            values[number, part] = made.to(dtype).cpu()
            if not values[number, part].isfinite().all():
                raise ArcvqError(
                    "the tokenizer's latents do not fit into float16: train the tokenizer with smaller norms"
                )
        if progress:
            progress(int(index[-1]) + 1, len(images))
    return Encoded(values, used, dict(images.skipped or {}))


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
        return hashlib.sha256(images.pixels.cpu().contiguous().numpy().data).hexdigest()
    return images.fingerprint() if isinstance(images, DecodedImages) else None
