"""Encodes image files to token files, and decodes token files to image files."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from posixpath import splitext

import numpy as np
import torch
from torch import Tensor

from arcvq.data import read_image, to_uint8, to_unit, write_png
from arcvq.data.files import UnreadableImage
from arcvq.data.folder import EXTENSIONS, image_paths
from arcvq.data.reading import image_threads, prefetch, raise_if_unreadable, read_in_threads
from arcvq.errors import ArcvqError
from arcvq.storage import check_writable_folder, read_arrays, write_bytes
from arcvq.tokenizers.inference import Precision, check_precision
from arcvq.tokenizers.tokenizer import Tokenizer

# Images per batch for a tokenizer without an image size.
DEFAULT_BATCH = 64

# Called with the number of images done and in all.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Tokens:
    """The content of a token file: tokens (n, h, w), the name of each image, and the fingerprint of the codebook."""

    tokens: Tensor
    names: list[str]
    codebook: str | None = None  # its fingerprint; None if unknown

    def save(self, path: Path) -> None:
        """Write a compressed .npz with the smallest integer type that holds the tokens."""
        buffer = io.BytesIO()
        smallest = np.uint16 if int(self.tokens.max()) < 2**16 else np.uint32
        np.savez_compressed(
            buffer,
            tokens=self.tokens.cpu().numpy().astype(smallest),
            names=np.array(self.names, dtype=np.str_),
            codebook=np.array(self.codebook or "", dtype=np.str_),
        )
        write_bytes(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> Tokens:
        """Read an .npz with an integer array `tokens` (n, h, w); `names` and `codebook` are optional."""
        arrays = read_arrays(path, "token file")
        if "tokens" not in arrays:
            raise ArcvqError(f"{path}: holds no array called tokens")
        tokens, codebook = arrays["tokens"], str(arrays.get("codebook", ""))
        names = [str(name) for name in np.atleast_1d(arrays["names"])] if "names" in arrays else None
        if not np.issubdtype(tokens.dtype, np.integer):
            raise ArcvqError(f"{path}: tokens must be integers, got {tokens.dtype}")
        if tokens.ndim < 3 or tokens.size == 0:
            raise ArcvqError(f"{path}: expected tokens (n, h, w), got shape {tokens.shape}")
        if names is None:
            names = [f"{i:06d}" for i in range(len(tokens))]
        if len(names) != len(tokens):
            raise ArcvqError(f"{path}: has {len(tokens)} token grids but {len(names)} names")
        return cls(torch.from_numpy(tokens.astype(np.int64)), names, codebook or None)


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
    skipped: dict[str, str] | None = None,
    progress: Progress | None = None,
) -> Tokens:
    """Encode image files, resized to the tokenizer's image size, in batches.

    An unreadable image is an error. If `skipped` is given, it is skipped, and its name and the reason are added there.
    """
    check_precision(precision, tokenizer.device)
    names: list[str] = []
    grids: list[Tensor] = []
    for part, images in _read_batches(tokenizer, find_images(sources), batch_size, skipped, progress):
        grids.append(tokenizer.encode(images, precision=precision, batch_size=len(images)).cpu())
        names += part
    return Tokens(torch.cat(grids), names, codebook_fingerprint(tokenizer))


def reconstruct_files(
    tokenizer: Tokenizer,
    sources: Sequence[str | Path],
    folder: Path,
    *,
    precision: Precision = "fp32",
    batch_size: int | None = None,
    skipped: dict[str, str] | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Write the reconstruction of every image below `folder`, in batches; returns the paths. `skipped` as in `encode_files`."""
    check_precision(precision, tokenizer.device)
    originals = find_images(sources)
    targets = dict(zip(originals, output_paths(folder, list(originals))))
    sources_resolved = {path.resolve() for path in originals.values()}
    for target in targets.values():
        if target.resolve() in sources_resolved:
            raise ArcvqError(f"{target}: is an input image and would be overwritten: choose another --out")
    written: list[Path] = []
    for names, images in _read_batches(tokenizer, originals, batch_size, skipped, progress):
        reconstructions = tokenizer.reconstruct(images, precision=precision, batch_size=len(images))
        written += write_pngs([targets[name] for name in names], reconstructions)
    return written


def decode_tokens(
    tokenizer: Tokenizer,
    tokens: Tokens,
    folder: Path,
    *,
    precision: Precision = "fp32",
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Decode every token grid to a PNG below `folder`, in batches; returns the paths."""
    if tokens.codebook not in (None, codebook_fingerprint(tokenizer)):
        raise ArcvqError("these tokens were made with another codebook: decode them with the tokenizer that made them")
    tokenizer.quantizer.check_tokens(tokens.tokens)
    targets = output_paths(folder, tokens.names)
    height, width = (side * tokenizer.downsampling for side in tokens.tokens.shape[1:3])
    size = batch_size or tokenizer.batch_size(height, width)
    for start in range(0, len(targets), size):
        grids = tokens.tokens[start : start + size]
        images = tokenizer.decode(grids, precision=precision, batch_size=len(grids))
        write_pngs(targets[start : start + size], images)
        if progress:
            progress(start + len(grids), len(targets))
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


def _read_batches(
    tokenizer: Tokenizer,
    paths: dict[str, Path],
    batch_size: int | None,
    skipped: dict[str, str] | None,
    progress: Progress | None,
) -> Iterator[tuple[list[str], Tensor]]:
    """Yield batches of names and floats (b, C, H, W) on the tokenizer's device; threads read the next batch ahead."""
    size = batch_size or (tokenizer.batch_size(*tokenizer.image_size) if tokenizer.image_size else DEFAULT_BATCH)
    names = list(paths)
    parts = [names[start : start + size] for start in range(0, len(names), size)]
    shapes: set[torch.Size] = set()

    def read(part: list[str]) -> list[Tensor | UnreadableImage]:
        read_resized = partial(read_image, channels=tokenizer.channels, size=tokenizer.image_size)
        return list(read_in_threads([paths[name] for name in part], read_resized))

    done = 0
    for part, results in zip(parts, prefetch(read, parts)):
        if skipped is None:
            raise_if_unreadable(results, ", or give --on-error skip")
        else:
            skipped |= {name: each.reason for name, each in zip(part, results) if isinstance(each, UnreadableImage)}
        images = {name: image for name, image in zip(part, results) if isinstance(image, Tensor)}
        shapes |= {image.shape for image in images.values()}
        if len(shapes) > 1:
            raise ArcvqError(
                "the images differ in size and this tokenizer has no image size: encode one size at a time"
            )
        if images:
            pixels = torch.stack(list(images.values()))
            if tokenizer.device.type == "cuda":  # copies from pinned memory overlap with the GPU's work
                pixels = pixels.pin_memory()
            yield list(images), to_unit(pixels.to(tokenizer.device, non_blocking=True))
        done += len(part)
        if progress:
            progress(done, len(names))
    if not shapes:
        name, reason = next(iter((skipped or {}).items()))
        raise ArcvqError(f"none of the {len(names)} images can be read; the first is {paths[name]} ({reason})")


def write_pngs(paths: list[Path], images: Tensor) -> list[Path]:
    """Write images in [-1, 1] as PNGs, in threads."""
    list(image_threads().map(write_png, paths, to_uint8(images).cpu()))  # list() raises the errors of the threads
    return paths
