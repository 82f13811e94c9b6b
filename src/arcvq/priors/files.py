"""Writes generated images as PNGs: each alone, and a grid of the first ones."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arcvq.data import read_image, to_uint8, to_unit, write_png
from arcvq.errors import ArcvqError
from arcvq.priors.generator import CHUNK, Classes, Generator
from arcvq.priors.saving import generator_fingerprint
from arcvq.storage import check_empty_folder, check_other_file, check_writable_folder, write_json
from arcvq.tokenizers.inference import Precision

# How many images the grid shows.
GRID_IMAGES = 64
# A mask's pixels of at least this level are filled in.
WHITE = 128


@dataclass(frozen=True)
class WrittenImages:
    grid: Path
    files: list[Path]


def sample_files(
    generator: Generator,
    out: Path,
    n: int,
    *,
    classes: Classes = None,
    seed: int = 0,
    chunk: int = CHUNK,
    precision: Precision = "fp32",
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> WrittenImages:
    """Make `n` images of a seed; write each as INDEX.png, or INDEX-CLASS.png, the first ones as grid.png, and sampling.json.

    sampling.json states every option of the sampling, given or not. The folder must be new or empty, so that all its images are those
    of sampling.json.
    """
    check_empty_folder(out)
    numbers = generator.class_numbers(classes)
    settings = generator.sampler_settings(options, chunk=chunk, precision=precision)
    about: dict[str, Any] = {"classes": classes, "seed": seed, "chunk": chunk, "precision": precision}
    width = max(6, len(str(n - 1)))
    files: list[Path] = []
    shown: list[Tensor] = []
    for batch in generator.batches(n, progress=progress, **about, **options):
        for pixels in to_uint8(batch).cpu():
            index = len(files)
            suffix = f"-{class_label(generator, numbers[index % len(numbers)])}" if numbers else ""
            files.append(out / f"{index:0{width}d}{suffix}.png")
            write_png(files[-1], pixels)
            if len(shown) < GRID_IMAGES:
                shown.append(pixels)
    grid = out / "grid.png"
    write_png(grid, image_grid(torch.stack(shown)))
    made = {"model": f"{generator_fingerprint(generator):016x}", "seed": seed, "images": n, "classes": numbers or None}
    write_json(out / "sampling.json", made | settings)
    return WrittenImages(grid, files)


def complete_file(
    generator: Generator,
    image: Path,
    mask: Path | None,
    rows: int | None,
    out: Path,
    *,
    classes: Classes = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Path:
    """Fill in an image where a mask is white, or continue it downwards by rows of tokens; writes NAME.png into `out`."""
    if (mask is None) == (rows is None):
        raise ArcvqError("an image is completed with --mask, or continued with --extend: give one of them")
    check_writable_folder(out)
    path = out / f"{image.stem}.png"
    check_other_file(path, image, *([mask] if mask else []))
    grid, side = generator.prior.grid, generator.tokenizer.downsampling
    size = (grid.height * side, grid.width * side)
    images = to_unit(read_image(image, generator.tokenizer.channels, size))[None]
    about: dict[str, Any] = {"classes": classes, "seed": seed, "progress": progress, **options}
    if mask is not None:
        made = generator.complete(images, read_image(mask, 1, size)[None] >= WHITE, **about)
    else:
        assert rows is not None
        made = generator.extend(images, rows, **about)
    write_png(path, to_uint8(made[0]).cpu())
    return path


def image_grid(images: Tensor, columns: int | None = None, gap: int = 2) -> Tensor:
    """Images (n, C, H, W) side by side with a white gap between them: uint8 (C, H', W'). By default about as many rows as columns."""
    n, channels, height, width = images.shape
    columns = columns or math.ceil(math.sqrt(n))
    rows = math.ceil(n / columns)
    grid = images.new_full((channels, rows * (height + gap) - gap, columns * (width + gap) - gap), 255)
    for index, image in enumerate(images):
        top, left = (index // columns) * (height + gap), (index % columns) * (width + gap)
        grid[:, top : top + height, left : left + width] = image
    return grid


def class_label(generator: Generator, number: int) -> str:
    """A class's name as a part of a file's name."""
    name = generator.class_names[number] if generator.class_names else str(number)
    return re.sub(r"[^\w.-]+", "-", name)
