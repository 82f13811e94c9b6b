"""Image files → token files → image files."""

from __future__ import annotations

import hashlib
import io
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from torch import Tensor

from arcvq.data import read_image, to_uint8, to_unit, write_png
from arcvq.data.folder import EXTENSIONS
from arcvq.data.folder import image_paths as images_below
from arcvq.errors import ArcvqError
from arcvq.storage import cannot_write, write_bytes
from arcvq.tokenizers.inference import Precision, check_precision
from arcvq.tokenizers.tokenizer import Tokenizer

# Threads that read and write image files: Pillow lets go of Python's lock while it decodes and encodes.
THREADS = 8
# Images read before their size is known, where a tokenizer has none of its own.
BATCH = 64


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
        try:
            with np.load(path, allow_pickle=False) as archive:
                if "tokens" not in archive:
                    raise ArcvqError(f"{path}: holds no array called tokens")
                tokens = archive["tokens"]
                names = [str(name) for name in archive["names"]] if "names" in archive else None
                codebook = str(archive["codebook"]) if "codebook" in archive else ""
        except FileNotFoundError:
            raise ArcvqError(f"{path}: no such token file") from None
        except ArcvqError:
            raise
        except Exception as error:  # numpy and zipfile raise a dozen kinds for a damaged archive
            raise ArcvqError(f"{path}: not a readable .npz token file ({type(error).__name__})") from None
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
) -> Tokens:
    """Every image, at the tokenizer's own size (shorter side resized, centre cut out)."""
    check_precision(precision, tokenizer.device)
    paths = image_paths(sources)
    grids = [
        tokenizer.encode(part, precision=precision, batch_size=len(part)).cpu()
        for part in _batches(tokenizer, list(paths.values()), batch_size)
    ]
    return Tokens(torch.cat(grids), list(paths), fingerprint(tokenizer))


def reconstruct_files(
    tokenizer: Tokenizer,
    sources: Sequence[str | Path],
    *,
    precision: Precision = "fp32",
    batch_size: int | None = None,
) -> tuple[Tensor, list[str]]:
    """The reconstructions, uint8 (n, C, H, W), and a name for each."""
    check_precision(precision, tokenizer.device)
    paths = image_paths(sources)
    parts = [
        to_uint8(tokenizer.reconstruct(part, precision=precision, batch_size=len(part))).cpu()
        for part in _batches(tokenizer, list(paths.values()), batch_size)
    ]
    return torch.cat(parts), list(paths)


def decode_tokens(
    tokenizer: Tokenizer, tokens: Tokens, *, precision: Precision = "fp32", batch_size: int | None = None
) -> Tensor:
    """uint8 (n, C, H, W)."""
    if tokens.codebook not in (None, fingerprint(tokenizer)):
        raise ArcvqError(
            "these tokens were made with another codebook than this tokenizer's: decode them with the one that made them"
        )
    height, width = (side * tokenizer.downsampling for side in tokens.tokens.shape[1:3])
    grids = tokens.tokens.split(batch_size or tokenizer.batch_size(height, width))
    return torch.cat(
        [to_uint8(tokenizer.decode(grid, precision=precision, batch_size=len(grid))).cpu() for grid in grids]
    )


def fingerprint(tokenizer: Tokenizer) -> str:
    """Sixteen hex digits of the codebook: tokens mean nothing under another."""
    codes = tokenizer.quantizer.require_codebook().detach().to("cpu", torch.float32).contiguous()
    return hashlib.sha256(codes.numpy().tobytes()).hexdigest()[:16]


def write_images(folder: Path, pixels: Tensor, names: Sequence[str], spare: Sequence[str | Path] = ()) -> list[Path]:
    """One PNG each, at its original's path below `folder`; never over one of the files of `spare`."""
    paths = [folder / name for name in unique_names([safe_path(name) for name in names])]
    originals = {path.resolve() for path in image_paths(spare).values()}
    for path in paths:
        if path.resolve() in originals:
            raise ArcvqError(f"{path}: is one of the images to read, and would be overwritten: choose another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from None
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(write_png, paths, pixels):
            pass  # an error surfaces here
    return paths


def unique_names(names: Sequence[str]) -> list[str]:
    """The names as they are, numbered before the ending where two are the same: no image may be written over another."""
    taken = set(names)
    seen: set[str] = set()
    counts: dict[str, int] = {}  # where the search for a free number goes on
    unique = []
    for name in names:
        candidate, ending = name, PurePosixPath(name).suffix
        while candidate in seen or (candidate != name and candidate in taken):
            counts[name] = counts.get(name, 1) + 1
            candidate = f"{name.removesuffix(ending)}-{counts[name]}{ending}"
        seen.add(candidate)
        unique.append(candidate)
    return unique


def safe_path(name: str) -> str:
    """A token file comes from anywhere: its names must not lead out of the folder. The ending of an image becomes .png."""
    *folders, last = [part for part in name.split("/") if part not in ("", ".", "..")] or ["image"]
    ending = PurePosixPath(last).suffix
    last = last.removesuffix(ending) if ending.lower() in EXTENSIONS else last
    return "/".join([*map(safe_name, folders), f"{safe_name(last)}.png"])


def safe_name(name: str) -> str:
    """One part of a path, of characters that every file system takes."""
    kept = "".join(c if c.isalnum() or c in "._- " else "_" for c in name).strip(". ")
    return kept or "image"


def _batches(tokenizer: Tokenizer, paths: Sequence[Path], batch_size: int | None) -> Iterator[Tensor]:
    """Floats on the tokenizer's device. While one batch is in work, threads read the next."""
    size = batch_size or (tokenizer.batch_size(*tokenizer.image_size) if tokenizer.image_size else BATCH)
    parts = [paths[start : start + size] for start in range(0, len(paths), size)]
    shapes = set()
    for images in _read_ahead(parts, lambda path: read_image(path, tokenizer.channels, tokenizer.image_size)):
        shapes |= {image.shape for image in images}
        if len(shapes) > 1:
            raise ArcvqError(
                "the images differ in size and this tokenizer has no size of its own: encode them one size at a time"
            )
        pixels = torch.stack(images)
        if tokenizer.device.type == "cuda":  # from pinned memory the copy goes on beside the work before it
            pixels = pixels.pin_memory()
        yield to_unit(pixels.to(tokenizer.device, non_blocking=True))


def _read_ahead(parts: Sequence[Sequence[Path]], read: Callable[[Path], Tensor]) -> Iterator[list[Tensor]]:
    """Each part's images, in order; the next part is being read when this one is given out."""
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="arcvq-read")
    try:
        ahead: deque[Iterator[Tensor]] = deque()
        for part in parts:
            ahead.append(pool.map(read, part))
            if len(ahead) > 1:
                yield list(ahead.popleft())
        if ahead:
            yield list(ahead.popleft())
    finally:  # after an error, what was not begun is not begun any more
        pool.shutdown(cancel_futures=True)
