"""Image files → token files → image files."""

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
from arcvq.data.folder import EXTENSIONS
from arcvq.data.folder import image_paths as images_below
from arcvq.data.reading import image_threads, prefetch, raise_if_unreadable, read_in_threads
from arcvq.errors import ArcvqError
from arcvq.storage import check_writable_folder, read_arrays, write_bytes
from arcvq.tokenizers.inference import Precision, check_precision
from arcvq.tokenizers.tokenizer import Tokenizer

# Images at a time where a tokenizer has no size of its own.
BATCH = 64

# Called with how many images are done, of how many.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Tokens:
    """A token file: tokens (n, h, w), the name of the image each row came from, and which codebook they point into."""

    tokens: Tensor
    names: list[str]
    codebook: str | None = None  # its fingerprint; None: the file does not say

    def save(self, path: Path) -> None:
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
        """Any .npz with a whole-number array `tokens` (n, h, w); `names` are optional."""
        arrays = read_arrays(path, "token file")
        if "tokens" not in arrays:
            raise ArcvqError(f"{path}: holds no array called tokens")
        tokens, codebook = arrays["tokens"], str(arrays.get("codebook", ""))
        names = [str(name) for name in np.atleast_1d(arrays["names"])] if "names" in arrays else None
        if not np.issubdtype(tokens.dtype, np.integer):
            raise ArcvqError(f"{path}: tokens must be whole numbers, got {tokens.dtype}")
        if tokens.ndim < 3 or tokens.size == 0:
            raise ArcvqError(f"{path}: expected tokens (n, h, w), got shape {tokens.shape}")
        if names is None:
            names = [f"{i:06d}" for i in range(len(tokens))]
        if len(names) != len(tokens):
            raise ArcvqError(f"{path}: has {len(tokens)} token grids but {len(names)} names")
        return cls(torch.from_numpy(tokens.astype(np.int64)), names, codebook or None)


def image_paths(sources: Sequence[str | Path]) -> dict[str, Path]:
    """Files as given, folders as the images in them, in order; each by the path below its folder, or by the file's name."""
    names: list[str] = []
    found: list[Path] = []
    for source in map(Path, sources):
        if source.is_dir():
            below = images_below(source)
            names += [relative.as_posix() for relative, _ in below]
            found += [path for _, path in below]
        elif source.exists():
            names.append(source.name)
            found.append(source)
        else:
            raise ArcvqError(f"{source}: no such image")
    return dict(zip(unique_names(names), found))


def encode_files(
    tokenizer: Tokenizer,
    sources: Sequence[str | Path],
    *,
    precision: Precision = "fp32",
    batch_size: int | None = None,
    skipped: dict[str, str] | None = None,
    progress: Progress | None = None,
) -> Tokens:
    """The tokens of every image, fitted to the tokenizer's own size. A batch of images is in memory at a time.

    An image that cannot be read is an error. Where `skipped` is given, it is left out, and noted there by name with the reason.
    """
    check_precision(precision, tokenizer.device)
    names: list[str] = []
    grids: list[Tensor] = []
    for part, images in _batches(tokenizer, image_paths(sources), batch_size, skipped, progress):
        grids.append(tokenizer.encode(images, precision=precision, batch_size=len(images)).cpu())
        names += part
    return Tokens(torch.cat(grids), names, fingerprint(tokenizer))


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
    """Write the reconstruction of every image below `folder`, batch by batch. `skipped` as in `encode_files`."""
    check_precision(precision, tokenizer.device)
    originals = image_paths(sources)
    targets = dict(zip(originals, output_paths(folder, list(originals))))
    kept = {path.resolve() for path in originals.values()}
    for target in targets.values():
        if target.resolve() in kept:
            raise ArcvqError(f"{target}: is one of the images to read, and would be overwritten: choose another --out")
    written: list[Path] = []
    for names, images in _batches(tokenizer, originals, batch_size, skipped, progress):
        made = tokenizer.reconstruct(images, precision=precision, batch_size=len(images))
        written += _write([targets[name] for name in names], made)
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
    """Write the image of every token grid below `folder`, batch by batch."""
    if tokens.codebook not in (None, fingerprint(tokenizer)):
        raise ArcvqError(
            "these tokens were made with another codebook than this tokenizer's: decode them with the one that made them"
        )
    tokenizer.quantizer.check_tokens(tokens.tokens)
    targets = output_paths(folder, tokens.names)
    height, width = (side * tokenizer.downsampling for side in tokens.tokens.shape[1:3])
    size = batch_size or tokenizer.batch_size(height, width)
    for start in range(0, len(targets), size):
        grids = tokens.tokens[start : start + size]
        made = tokenizer.decode(grids, precision=precision, batch_size=len(grids))
        _write(targets[start : start + size], made)
        if progress:
            progress(start + len(grids), len(targets))
    return targets


def fingerprint(tokenizer: Tokenizer) -> str:
    """Sixteen hex digits of the codebook: tokens mean nothing under another."""
    codes = tokenizer.quantizer.require_codebook().detach().to("cpu", torch.float32).contiguous()
    return hashlib.sha256(codes.numpy().tobytes()).hexdigest()[:16]


def output_paths(folder: Path, names: Sequence[str]) -> list[Path]:
    """A PNG for each image, at its original's path below `folder`."""
    check_writable_folder(folder)
    return [folder / name for name in unique_names([safe_path(name) for name in names])]


def unique_names(names: Sequence[str]) -> list[str]:
    """The names as they are, numbered before the ending where two are the same: no image may be written over another."""
    taken = set(names)
    seen: set[str] = set()
    counts: dict[str, int] = {}  # where the search for a free number goes on
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
    """A token file comes from anywhere: its names must not lead out of the folder. The ending of an image becomes .png."""
    *folders, last = [part for part in name.split("/") if part not in ("", ".", "..")] or ["image"]
    stem, ending = splitext(last)
    last = stem if ending.lower() in EXTENSIONS else last
    return "/".join([*map(safe_name, folders), f"{safe_name(last)}.png"])


def safe_name(name: str) -> str:
    """One part of a path, of characters that every file system takes."""
    kept = "".join(c if c.isalnum() or c in "._- " else "_" for c in name).strip(". ")
    return kept or "image"


def _batches(
    tokenizer: Tokenizer,
    paths: dict[str, Path],
    batch_size: int | None,
    skipped: dict[str, str] | None,
    progress: Progress | None,
) -> Iterator[tuple[list[str], Tensor]]:
    """Names and floats (b, C, H, W) on the tokenizer's device. While one batch is in work, threads read the next."""
    size = batch_size or (tokenizer.batch_size(*tokenizer.image_size) if tokenizer.image_size else BATCH)
    names = list(paths)
    parts = [names[start : start + size] for start in range(0, len(names), size)]
    shapes: set[torch.Size] = set()

    def read(part: list[str]) -> list[Tensor | UnreadableImage]:
        fitted = partial(read_image, channels=tokenizer.channels, size=tokenizer.image_size)
        return list(read_in_threads([paths[name] for name in part], fitted))

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
                "the images differ in size and this tokenizer has no size of its own: encode them one size at a time"
            )
        if images:
            pixels = torch.stack(list(images.values()))
            if tokenizer.device.type == "cuda":  # from pinned memory the copy goes on beside the work before it
                pixels = pixels.pin_memory()
            yield list(images), to_unit(pixels.to(tokenizer.device, non_blocking=True))
        done += len(part)
        if progress:
            progress(done, len(names))
    if not shapes:
        name, reason = next(iter((skipped or {}).items()))
        raise ArcvqError(f"none of the {len(names)} images can be read; the first is {paths[name]} ({reason})")


def _write(paths: list[Path], images: Tensor) -> list[Path]:
    """Images in [-1, 1] as PNGs, in threads."""
    list(image_threads().map(write_png, paths, to_uint8(images).cpu()))  # an error surfaces here
    return paths
