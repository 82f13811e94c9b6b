"""Encodes image files to token files, and decodes token files to image files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from posixpath import splitext

import torch
from torch import Tensor

from arcvq.data import to_uint8, write_png
from arcvq.data.folder import EXTENSIONS, image_paths
from arcvq.data.reading import image_threads
from arcvq.errors import ArcvqError
from arcvq.storage import check_writable_folder
from arcvq.tokenizers.image_batches import (
    FileReader,
    FileSize,
    Progress,
    images_at_a_time,
    padded_size,
)
from arcvq.tokenizers.inference import Precision, check_precision
from arcvq.tokenizers.tiles import Tile, as_tile
from arcvq.tokenizers.token_file import HeightWidth, Tokens
from arcvq.tokenizers.tokenizer import Tokenizer


def find_images(sources: Sequence[str | Path]) -> dict[str, Path]:
    """The image files of `sources` (files and folders) by unique name: the file's name, or its path below the folder."""
    names: list[str] = []
    paths: list[Path] = []
    for source in map(Path, sources):
        if source.is_dir():
            inside = image_paths(source)
            names += [relative.as_posix() for relative, _ in inside]
            paths += [path for _, path in inside]
        elif source.exists():
            names.append(source.name)
            paths.append(source)
        else:
            raise ArcvqError(f"{source}: no such image")
    return dict(zip(unique_names(names), paths))


def encode_files(
    tokenizer: Tokenizer,
    sources: Sequence[str | Path],
    *,
    precision: Precision = "fp32",
    batch_size: int | None = None,
    size: FileSize = None,
    tile: int | Tile | None = None,
    skipped: dict[str, str] | None = None,
    progress: Progress | None = None,
) -> Tokens:
    """Encode image files, in batches.

    They are resized to `size`, by default the tokenizer's image size; with `original` each keeps its own and is padded, by reflection,
    to a multiple of the downsampling. `tile` is as in `Tokenizer.encode`; `batch_size` then counts tiles. An unreadable image is an
    error. If `skipped` is given, it is skipped, and its name and the reason are added there.
    """
    check_precision(precision, tokenizer.device)
    tokenizer.quantizer.require_codebook()
    reader = FileReader.of(tokenizer, size, tile, batch_size)
    names: list[str] = []
    batches: list[Tensor] = []
    sizes: list[HeightWidth] = []
    padded = False
    for batch in reader.batches(find_images(sources), skipped, progress):
        at_a_time = len(batch.names) if tile is None else batch_size
        tokens = tokenizer.encode(batch.images, precision=precision, batch_size=at_a_time, tile=tile)
        batches.append(tokens.cpu())
        names += batch.names
        height_and_width = (batch.images.shape[2], batch.images.shape[3])
        sizes += [batch.size or height_and_width] * len(batch.names)
        padded |= batch.size not in (None, height_and_width)
    return Tokens.of(batches, names, codebook_fingerprint(tokenizer), sizes if padded else None)


def reconstruct_files(
    tokenizer: Tokenizer,
    sources: Sequence[str | Path],
    folder: Path,
    *,
    precision: Precision = "fp32",
    batch_size: int | None = None,
    size: FileSize = None,
    tile: int | Tile | None = None,
    skipped: dict[str, str] | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Write the reconstruction of every image below `folder`, in batches; returns the paths. The options are as in `encode_files`."""
    check_precision(precision, tokenizer.device)
    reader = FileReader.of(tokenizer, size, tile, batch_size)
    originals = find_images(sources)
    targets = dict(zip(originals, output_paths(folder, list(originals))))
    sources_resolved = {path.resolve() for path in originals.values()}
    for target in targets.values():
        if target.resolve() in sources_resolved:
            raise ArcvqError(f"{target}: is an input image and would be overwritten: choose another --out")
    written: list[Path] = []
    for batch in reader.batches(originals, skipped, progress):
        at_a_time = len(batch.names) if tile is None else batch_size
        images = tokenizer.reconstruct(batch.images, precision=precision, batch_size=at_a_time, tile=tile)
        height, width = batch.size or images.shape[2:]
        written += write_pngs([targets[name] for name in batch.names], images[:, :, :height, :width])
    return written


def decode_tokens(
    tokenizer: Tokenizer,
    tokens: Tokens,
    folder: Path,
    *,
    precision: Precision = "fp32",
    batch_size: int | None = None,
    tile: int | Tile | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Decode every token grid to a PNG below `folder`, in batches; returns the paths. `tile` as in `Tokenizer.decode`."""
    if tokens.codebook not in (None, codebook_fingerprint(tokenizer)):
        raise ArcvqError("these tokens were made with another codebook: decode them with the tokenizer that made them")
    check_precision(precision, tokenizer.device)
    tokenizer.quantizer.check_tokens(tokens.tokens)
    factor = tokenizer.downsampling
    padded = [(rows * factor, columns * factor) for rows, columns in tokens.shapes]
    sizes = padded if tokens.sizes is None else [(height, width) for height, width in tokens.sizes.tolist()]
    for size, filled in zip(sizes, padded):
        if padded_size(size, factor) != filled:
            raise ArcvqError(
                f"a grid of tokens is an image of {filled[0]}×{filled[1]} here, not one of {size[0]}×{size[1]}"
            )
    for filled in set(padded):
        tokenizer.check_size(*filled, tile=tile)
    targets = output_paths(folder, tokens.names)
    done = 0
    # Neighbours of one size are decoded together.
    for (filled, (height, width)), group in groupby(
        range(len(tokens)), key=lambda index: (padded[index], sizes[index])
    ):
        neighbours = list(group)
        limit = images_at_a_time(tokenizer, filled, None if tile is None else as_tile(tile), batch_size)
        for part in (neighbours[start : start + limit] for start in range(0, len(neighbours), limit)):
            batch = tokens.batch(part[0], part[-1] + 1)
            at_a_time = len(part) if tile is None else batch_size
            images = tokenizer.decode(batch, precision=precision, batch_size=at_a_time, tile=tile)
            write_pngs([targets[index] for index in part], images[:, :, :height, :width])
            done += len(part)
            if progress:
                progress(done, len(targets))
    return targets


def codebook_fingerprint(tokenizer: Tokenizer) -> str:
    """A hash of the codebook, 16 hex digits, saved with tokens because they are only valid for this codebook."""
    codes = tokenizer.quantizer.require_codebook().detach().to("cpu", torch.float32).contiguous()
    return hashlib.sha256(codes.numpy().tobytes()).hexdigest()[:16]


def output_paths(folder: Path, names: Sequence[str]) -> list[Path]:
    """Unique paths of PNG files below `folder`, one per name; names become safe paths."""
    check_writable_folder(folder)
    return [folder / name for name in unique_names([safe_path(name) for name in names])]


def unique_names(names: Sequence[str]) -> list[str]:
    """Number repeated names before their ending (a.png, a-2.png), so that no image overwrites another."""
    taken = set(names)
    seen: set[str] = set()
    counts: dict[str, int] = {}  # the last number tried for a name
    unique = []
    for name in names:
        candidate = name
        while candidate in seen or (candidate != name and candidate in taken):
            counts[name] = counts.get(name, 1) + 1
            stem, ending = splitext(name)
            candidate = f"{stem}-{counts[name]}{ending}"
        seen.add(candidate)
        unique.append(candidate)
    return unique


def safe_path(name: str) -> str:
    """A relative path with ending .png that stays inside its folder, because names of token files are not trusted."""
    *folders, last = [part for part in name.split("/") if part not in ("", ".", "..")] or ["image"]
    stem, ending = splitext(last)
    last = stem if ending.lower() in EXTENSIONS else last
    return "/".join([*map(safe_name, folders), f"{safe_name(last)}.png"])


def safe_name(name: str) -> str:
    """Replace characters in one part of a path that some file systems refuse."""
    safe = "".join(c if c.isalnum() or c in "._- " else "_" for c in name).strip(". ")
    return safe or "image"


def write_pngs(paths: list[Path], images: Tensor) -> list[Path]:
    """Write images in [-1, 1] as PNGs, in threads."""
    list(image_threads().map(write_png, paths, to_uint8(images).cpu()))  # list() raises the errors of the threads
    return paths
