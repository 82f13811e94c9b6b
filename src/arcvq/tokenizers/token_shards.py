"""Encodes image shards to token shards, and decodes token shards to image files.

An image's tokens can depend, in their last bits, on how many images go through the encoder at a time: libraries choose other algorithms
for other sizes. So every chunk has the same number of images here, the last one of a shard padded with blank ones, and a shard is encoded
from its first image on: its bytes are the same in a run that was killed and continued.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from arcvq.data.files import UnreadableImage, read_image
from arcvq.data.folder import TEST_FOLDERS, split_folders
from arcvq.data.pixels import to_unit
from arcvq.data.reading import prefetch, raise_if_unreadable, read_in_threads
from arcvq.data.shard_index import INDEX, TOKENS, ShardIndex, build_index, describe_shards, open_index
from arcvq.data.tar import END, pack
from arcvq.data.tokens import HEADER, TokenHeader, TokenShards
from arcvq.errors import ArcvqError
from arcvq.storage import folder_lock, read_json, write_bytes, write_error, write_json
from arcvq.tokenizers.files import codebook_fingerprint, output_paths, write_pngs
from arcvq.tokenizers.image_batches import Progress
from arcvq.tokenizers.inference import Precision, check_precision
from arcvq.tokenizers.tiles import Tile
from arcvq.tokenizers.tokenizer import Tokenizer

# Pixels and images in a chunk: 32 images of 256 × 256. It depends on nothing but the images' size.
CHUNK_PIXELS, CHUNK_IMAGES = 2**21, 256


def is_shards(source: str | Path) -> bool:
    """Whether an argument names shards of images: `shards:PATH`, or a folder that holds their index."""
    return str(source).startswith("shards:") or any((folder / INDEX).is_file() for folder in _places(source))


def holds_tar_files(source: str | Path) -> bool:
    """Whether an argument names a folder with tar files, which are shards of images once `shards:` is written before it."""
    return any(True for folder in _places(source) for _ in folder.glob("*.tar"))


def _places(source: str | Path) -> list[Path]:
    """Where the shards of a folder may lie: there, or in the folders of its splits."""
    return [Path(source), *(Path(source) / split for split in ("train", *TEST_FOLDERS))]


@dataclass
class EncodedShards:
    """What `encode_shards` wrote, the shards that were there before included."""

    images: int = 0
    shards: int = 0
    kept: int = 0  # shards that were there before
    grid: tuple[int, ...] = ()
    skipped: dict[str, str] = field(default_factory=dict)


def encode_shards(
    tokenizer: Tokenizer,
    source: str | Path,
    out: Path,
    *,
    precision: Precision = "fp32",
    skip_unreadable: bool = False,
    progress: Progress | None = None,
) -> EncodedShards:
    """Encode image shards to token shards of the same names, keys and labels in the folder `out`.

    Shards that are there already are kept if the same tokenizer made them in the same way, so that a killed run goes on.
    """
    check_precision(precision, tokenizer.device)
    folder = Path(str(source).removeprefix("shards:")).expanduser()
    folders = split_folders(folder)
    targets = [(folder, out)] if folders is None else [(path, out / path.name) for path in folders.values()]
    indices = [(open_index(path), target) for path, target in targets]
    headers = [make_header(tokenizer, index, precision) for index, _ in indices]
    for header, (_, target) in zip(headers, indices):
        check_target(header, target)
    result = EncodedShards(grid=headers[0].grid)
    total, done = sum(len(index) for index, _ in indices), 0
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(out, error) from None
    with folder_lock(out / "lock", "encode"):
        for header, (index, target) in zip(headers, indices):
            write_json(target / HEADER, header.to_json())
            for left in target.glob(".*.tmp"):  # what a kill left half-written
                left.unlink()
            for number, shard in enumerate(index.shards):
                path, samples = target / shard["name"], np.flatnonzero(index.fields["shard"] == number).tolist()
                if path.is_file():
                    result.kept += 1
                else:
                    write_bytes(path, encode_shard(tokenizer, index, samples, header, precision, skip_unreadable))
                os.utime(path, (0, 0))  # the index holds it, and must be the same bytes each time
                result.shards, done = result.shards + 1, done + len(samples)
                if progress:
                    progress(done, total)
            made = build_index(target, describe_shards(target), TOKENS, index.class_names)
            made.save(target / INDEX)
            result.images += len(made)
            result.skipped |= skipped_images(index, made, header, tokenizer.channels)
        (out / "lock").unlink()
    return result


def encode_shard(
    tokenizer: Tokenizer,
    index: ShardIndex,
    samples: list[int],
    header: TokenHeader,
    precision: Precision,
    skip_unreadable: bool,
) -> bytes:
    """Encode an image shard; returns the bytes of its token shard: KEY.npy for each image, and KEY.cls if it has a label."""
    packed = []
    for part, pixels, read in read_chunks(index, samples, header, tokenizer.channels, skip_unreadable):
        images = to_unit(pixels.to(tokenizer.device, non_blocking=True))
        tokens = tokenizer.encode(images, precision=precision, batch_size=header.chunk).cpu()
        for sample, grid, is_read in zip(part, tokens, read):
            key, label = index.keys[sample], int(index.fields["label"][sample])
            if is_read:
                packed.append(pack(f"{key}.cls", str(label).encode()) if label >= 0 else b"")
                packed.append(pack(f"{key}.npy", header.pack(grid)))
    return b"".join(packed) + END


def read_chunks(
    index: ShardIndex, samples: list[int], header: TokenHeader, channels: int, skip_unreadable: bool
) -> Iterator[tuple[list[int], Tensor, list[bool]]]:
    """Yield (samples, uint8 (chunk, C, H, W), which of them were read); threads read the next chunk ahead."""

    def read(part: list[int]) -> list[Tensor | UnreadableImage]:
        return list(read_in_threads(part, lambda sample: read_sample(index, sample, header, channels)))

    parts = [samples[first : first + header.chunk] for first in range(0, len(samples), header.chunk)]
    for part, results in zip(parts, prefetch(read, parts)):
        if not skip_unreadable:
            raise_if_unreadable(results, ", or give --on-error skip")
        pixels = torch.zeros(header.chunk, channels, *header.image_size, dtype=torch.uint8)
        for target, result in zip(pixels, results):
            if isinstance(result, Tensor):
                target.copy_(result)
        yield part, pixels, [isinstance(result, Tensor) for result in results]


def read_sample(index: ShardIndex, sample: int, header: TokenHeader, channels: int) -> Tensor:
    """An image of the header's size, uint8 (C, H, W)."""
    return read_image(index.sample_path(sample), channels, header.image_size, index.read(sample))


def skipped_images(index: ShardIndex, made: ShardIndex, header: TokenHeader, channels: int) -> dict[str, str]:
    """The images without tokens, with the reasons: they are read again, because another run may have skipped them."""
    kept = set(zip(made.fields["shard"].tolist(), made.keys))
    skipped = {}
    for sample, place in enumerate(zip(index.fields["shard"].tolist(), index.keys)):
        if place not in kept:
            try:
                read_sample(index, sample, header, channels)
            except UnreadableImage as error:
                skipped[str(error.path)] = error.reason
    return skipped


def make_header(tokenizer: Tokenizer, index: ShardIndex, precision: Precision) -> TokenHeader:
    """The header of the token shards that this tokenizer makes of these images."""
    kinds = index.header_kinds()
    sizes = {(header.height, header.width) for header in kinds.values()}
    if not kinds:
        raise_if_unreadable(index.unreadable())
    if tokenizer.image_size is None and len(sizes) > 1:
        raise ArcvqError(f"the images in {index.folder} differ in size and this tokenizer has no image size")
    height, width = tokenizer.image_size or next(iter(sizes))
    chunk = max(1, min(CHUNK_IMAGES, CHUNK_PIXELS // (height * width)))
    blank = torch.zeros(1, tokenizer.channels, height, width, device=tokenizer.device)
    codes = tokenizer.quantizer.config.codebook_size
    return TokenHeader(
        codebook=codebook_fingerprint(tokenizer),
        tokenizer=tokenizer_fingerprint(tokenizer),
        grid=tuple(tokenizer.encode(blank, precision=precision).shape[1:]),
        codebook_size=codes,
        dtype="uint16" if codes <= 2**16 else "int32",
        image_size=(height, width),
        chunk=chunk,
        precision=precision,
        device=tokenizer.device.type,
        source=[{"name": shard["name"], "bytes": shard["bytes"]} for shard in index.shards],
    )


def check_target(header: TokenHeader, target: Path) -> None:
    """Raise if a folder holds something else than token shards that this header describes."""
    if not target.exists():
        return
    if not (target / HEADER).is_file():
        if target.is_dir() and {path.name for path in target.iterdir()} <= {"lock"}:
            return
        raise ArcvqError(f"{target}: exists and does not hold token shards: choose another --out")
    there = read_json(target / HEADER, "a folder of token shards")
    different = next((name for name, value in header.to_json().items() if there.get(name) != value), None)
    if different is not None:
        raise ArcvqError(f"{target}: holds token shards made with another {different}: choose another --out")


def tokenizer_fingerprint(model: nn.Module) -> str:
    """A hash of all weights and buffers of a tokenizer or another module, 16 hex digits."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        values = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        digest.update(values.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def decode_shards(
    tokenizer: Tokenizer,
    folder: Path,
    out: Path,
    *,
    precision: Precision = "fp32",
    batch_size: int | None = None,
    tile: int | Tile | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Decode every token grid in a folder of token shards to a PNG below `out`, named by its key; returns the paths.

    `tile` is as in `Tokenizer.decode`; `batch_size` then counts tiles.
    """
    folders = split_folders(folder)
    sets = (
        [(TokenShards(folder), out)] if folders is None else [(TokenShards(f), out / f.name) for f in folders.values()]
    )
    written: list[Path] = []
    total = sum(len(tokens) for tokens, _ in sets)
    for tokens, target in sets:
        if tokens.header.codebook != codebook_fingerprint(tokenizer):
            raise ArcvqError(
                f"{tokens.folder}: made with another codebook: decode the tokens with the tokenizer that made them"
            )
        paths = output_paths(target, tokens.keys)
        # With tiles, `batch_size` is the number of tiles, and memory is short: one image at a time.
        size = 1 if tile is not None else batch_size or tokens.header.chunk
        parts = list(torch.arange(len(tokens)).split(size))
        for part, grids in zip(parts, prefetch(tokens.gather, parts)):
            at_a_time = len(grids) if tile is None else batch_size
            images = tokenizer.decode(grids, precision=precision, batch_size=at_a_time, tile=tile)
            written += write_pngs([paths[index] for index in part.tolist()], images)
            if progress:
                progress(len(written), total)
    return written
