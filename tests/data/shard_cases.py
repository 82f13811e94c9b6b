"""Folders of images and tar shards that the tests of shards share."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from arcvq.data import Images, write_png


def noise(index: int, height: int = 8, width: int = 8, channels: int = 3) -> Tensor:
    """Random pixels, uint8 (C, H, W), others for each index."""
    generator = torch.Generator().manual_seed(index)
    return torch.randint(0, 256, (channels, height, width), dtype=torch.uint8, generator=generator)


def png(pixels: Tensor) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(content, "PNG")
    return content.getvalue()


def write_images(folder: Path, count: int, classes: int = 0, size: tuple[int, int] = (8, 8)) -> Path:
    """A folder of images NN.png, in folders of their classes if there are any."""
    for index in range(count):
        below = f"class-{index % classes}" if classes else "."
        write_png(folder / below / f"{index:02d}.png", noise(index, *size))
    return folder


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    """A tar with these files, as Python's tarfile writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def write_numbered(path: Path, numbers: range, labelled: bool = True) -> Path:
    """A tar with the image `noise(number)` and the label number % 3 for each number."""
    files = {}
    for number in numbers:
        files[f"{number:04d}.png"] = png(noise(number))
        if labelled:
            files[f"{number:04d}.cls"] = str(number % 3).encode()
    return write_tar(path, files)


def all_pixels(images: Images) -> Tensor:
    return images.gather(torch.arange(len(images)))


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file below a folder, by its path there."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
