"""What tiles change: tokens and pixels of large images in overlapping tiles, beside those of the whole image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arcvq.data import read_image, to_unit
from arcvq.errors import ArcvqError
from arcvq.metrics.image import psnr
from arcvq.tokenizers import Tile, Tokenizer
from arcvq.tokenizers.files import find_images
from arcvq.tokenizers.tiles import Span, TileGrid
from benchmarks.measure import measure_memory

SIDES = (128, 256)
# Shares of a tile's side.
MARGINS = (0, 1 / 16, 1 / 8, 1 / 4)
# Pixels at most this far from a border between two tiles count as near it.
NEAR = 8


def load_model_and_images(
    model: str, data: str, device: torch.device, limit: int | None
) -> tuple[Tokenizer, list[Tensor]]:
    """The tokenizer, and image files as uint8 (1, C, H, W), cropped at the bottom and the right to multiples of its downsampling."""
    if not data.startswith("folder:"):
        raise ArcvqError(f"the suite seams reads large images: expected --data folder:PATH, got {data}")
    tokenizer = Tokenizer.from_pretrained(model, device=device)
    tokenizer.quantizer.require_codebook()
    paths = list(find_images([Path(data.removeprefix("folder:")).expanduser()]).values())
    factor, images = tokenizer.downsampling, []
    for path in paths[:limit]:
        image = read_image(path, tokenizer.channels).unsqueeze(0)
        height, width = (side // factor * factor for side in image.shape[2:])
        images.append(image[:, :, :height, :width])
    return tokenizer, images


def seam_rows(
    tokenizer: Tokenizer, images: Sequence[Tensor], sides: Sequence[int], batch_size: int
) -> Iterator[dict[str, Any]]:
    """A row for whole images, then one for each side and margin. `mebibytes` and `computed` are those of the first image."""
    device, factor = tokenizer.device, tokenizer.downsampling
    originals = [to_unit(image.to(device)) for image in images]
    tokens = [tokenizer.encode(image) for image in originals]
    copies = [tokenizer.decode(grid) for grid in tokens]

    def memory(tile: Tile | None) -> float:
        return measure_memory(lambda: tokenizer.reconstruct(originals[0], tile=tile, batch_size=batch_size), device)

    yield {"task": "seams", "name": "whole", "psnr": mean_psnr(originals, copies), "mebibytes": memory(None)}
    for side in sides:
        for margin in sorted({int(share * side) // factor * factor for share in MARGINS}):
            tile = Tile(side, margin)
            found = [tokenizer.encode(image, tile=tile, batch_size=batch_size) for image in originals]
            tiled = [tokenizer.decode(grid, tile=tile, batch_size=batch_size) for grid in found]
            equal = sum(int((a == b).sum()) for a, b in zip(found, tokens)) / sum(grid.numel() for grid in tokens)
            yield {
                "task": "seams",
                "name": f"tile {side}, margin {margin}",
                "tile": side,
                "margin": margin,
                "agreement": equal,
                "psnr": mean_psnr(originals, tiled),
                "psnr_to_whole": mean_psnr(copies, tiled),
                **errors_by_place(copies, tiled, tile, factor),
                "computed": computed_share(originals[0], tile, factor),
                "mebibytes": memory(tile),
            }


def mean_psnr(images: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    """The mean over images of the PSNR in dB, of floats that are not rounded to 8 bits; of equal images 100."""
    values = [psnr((image + 1) / 2, (other + 1) / 2) for image, other in zip(images, others)]
    return float(torch.cat(values).mean())


def errors_by_place(whole: Sequence[Tensor], tiled: Sequence[Tensor], tile: Tile, factor: int) -> dict[str, float]:
    """Mean absolute differences, in 8-bit levels: `near` the borders between tiles, and `elsewhere`."""
    sums, counts = {"near": 0.0, "elsewhere": 0.0}, {"near": 0, "elsewhere": 0}
    for image, other in zip(whole, tiled):
        height, width = image.shape[2:]
        tiles = TileGrid.of(height // factor, width // factor, tile, factor)
        near = near_borders(tiles.rows, height, factor)[:, None] | near_borders(tiles.columns, width, factor)
        error = (image - other).abs().mul(127.5).double().mean(dim=(0, 1)).cpu()
        for place, mask in {"near": near, "elsewhere": ~near}.items():
            sums[place] += float(error[mask].sum())
            counts[place] += int(mask.sum())
    return {f"{place}_error": sums[place] / max(1, counts[place]) for place in sums}


def computed_share(image: Tensor, tile: Tile, factor: int) -> float:
    """Pixels of all tiles of an image, as a multiple of the image's own."""
    height, width = image.shape[2:]
    tiles = TileGrid.of(height // factor, width // factor, tile, factor)
    tile_height, tile_width = tiles.tile_size
    return len(tiles.rows) * len(tiles.columns) * tile_height * tile_width / (height * width)


def near_borders(spans: Sequence[Span], length: int, factor: int) -> Tensor:
    """Which of `length` pixels along an axis are near a border between two tiles."""
    near = torch.zeros(length, dtype=torch.bool)
    for span in spans[:-1]:
        border = span.last * factor
        near[max(0, border - NEAR) : border + NEAR] = True
    return near
