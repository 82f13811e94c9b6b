"""Large images in overlapping tiles: the autoencoder sees one batch of tiles at a time, so its memory does not grow with the image.

Each position of the token grid belongs to one tile, which shows the encoder at least `margin` pixels around it, or all there are. The
decoder's tiles are blended linearly over `margin` pixels across each border between two of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise, product

import torch
from torch import Tensor

from arcvq.errors import ArcvqError

# The default margin as a share of a tile's side, and the largest: above it, the blended borders of three tiles could meet.
DEFAULT_MARGIN, MAX_MARGIN = 8, 4


@dataclass(frozen=True)
class Tile:
    """A square of pixels that goes through the autoencoder at once.

    side    of the square
    margin  context around what a tile is responsible for; None: an eighth of the side. The larger, the nearer the result is to that
            of the whole image, and the more pixels are computed twice
    """

    side: int
    margin: int | None = None

    def in_positions(self, downsampling: int) -> tuple[int, int]:
        """Side and margin in latent positions, checked."""
        if self.side < 1 or self.side % downsampling:
            raise ArcvqError(f"a tile's side must be a multiple of {downsampling}, got {self.side}")
        side = self.side // downsampling
        if self.margin is None:
            if side < DEFAULT_MARGIN:
                raise ArcvqError(
                    f"a tile of {self.side} pixels has no room for a margin: its side must be at least "
                    f"{DEFAULT_MARGIN * downsampling}"
                )
            return side, side // DEFAULT_MARGIN
        if self.margin < 0 or self.margin % downsampling:
            raise ArcvqError(f"a tile's margin must be a multiple of {downsampling}, got {self.margin}")
        if MAX_MARGIN * self.margin > self.side:
            raise ArcvqError(
                f"a margin of {self.margin} pixels needs tiles of at least {MAX_MARGIN * self.margin}, got {self.side}"
            )
        return side, self.margin // downsampling


def as_tile(tile: int | Tile) -> Tile:
    """The tile, of its side alone if a number is given."""
    return tile if isinstance(tile, Tile) else Tile(tile)


@dataclass(frozen=True)
class Span:
    """Where a tile lies along one axis, in latent positions: it covers start to stop and is responsible for first to last."""

    start: int
    stop: int
    first: int
    last: int


def spans(length: int, side: int, margin: int) -> list[Span]:
    """Cover 0 to `length` with as few tiles of this side as possible; neighbours overlap by at least 2 · `margin`.

    They are evenly spread. The border between two of them is in the middle of what both cover, at least `margin` from either's end.
    """
    if length <= side:
        return [Span(0, length, 0, length)]
    count = math.ceil((length - 2 * margin) / (side - 2 * margin))
    starts = [index * (length - side) // (count - 1) for index in range(count)]
    borders = [0, *((before + side + after) // 2 for before, after in pairwise(starts)), length]
    return [Span(start, start + side, *borders[index : index + 2]) for index, start in enumerate(starts)]


@dataclass(frozen=True)
class TileGrid:
    """The tiles of equally large images: rows and columns of them in latent positions."""

    rows: list[Span]
    columns: list[Span]
    downsampling: int
    margin: int  # in latent positions

    @classmethod
    def of(cls, height: int, width: int, tile: Tile, downsampling: int) -> TileGrid:
        """The tiles of a grid of height × width latent positions."""
        side, margin = tile.in_positions(downsampling)
        return cls(spans(height, side, margin), spans(width, side, margin), downsampling, margin)

    @property
    def tile_size(self) -> tuple[int, int]:
        """Height and width of every tile, in pixels."""
        row, column = self.rows[0], self.columns[0]
        return (row.stop - row.start) * self.downsampling, (column.stop - column.start) * self.downsampling

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the grid of latent positions."""
        return self.rows[-1].stop, self.columns[-1].stop

    def batches(self, images: int, size: int) -> Iterator[list[tuple[int, Span, Span]]]:
        """Yield the tiles (image, row, column) of this number of images, `size` at a time."""
        places = list(product(range(images), self.rows, self.columns))
        for start in range(0, len(places), size):
            yield places[start : start + size]


def encode_tiles(encode: Callable[[Tensor], Tensor], images: Tensor, tiles: TileGrid, batch_size: int) -> Tensor:
    """Images (B, C, H, W) → grids (B, h, w, ...). `encode` makes grids of batches of tiles."""
    factor = tiles.downsampling
    result: Tensor | None = None
    for places in tiles.batches(len(images), batch_size):
        batch = [
            images[image, :, row.start * factor : row.stop * factor, column.start * factor : column.stop * factor]
            for image, row, column in places
        ]
        for (image, row, column), grid in zip(places, encode(torch.stack(batch))):
            if result is None:
                result = grid.new_empty(len(images), *tiles.shape, *grid.shape[2:])
            inner = slice(row.first - row.start, row.last - row.start)
            result[image, row.first : row.last, column.first : column.last] = grid[
                inner, column.first - column.start : column.last - column.start
            ]
    assert result is not None
    return result


def decode_tiles(decode: Callable[[Tensor], Tensor], grids: Tensor, tiles: TileGrid, batch_size: int) -> Tensor:
    """Grids (B, h, w, ...) → images (B, C, H, W). `decode` makes images of batches of tiles."""
    factor = tiles.downsampling
    height, width = tiles.shape
    result: Tensor | None = None
    for places in tiles.batches(len(grids), batch_size):
        batch = [grids[image, row.start : row.stop, column.start : column.stop] for image, row, column in places]
        for (image, row, column), decoded in zip(places, decode(torch.stack(batch))):
            if result is None:
                result = decoded.new_zeros(len(grids), len(decoded), height * factor, width * factor)
            (top, rows), (left, columns) = blend_weights(row, height, tiles), blend_weights(column, width, tiles)
            inner = decoded[:, top - row.start * factor :, left - column.start * factor :]
            weighted = inner[:, : len(rows), : len(columns)] * rows.to(decoded)[:, None] * columns.to(decoded)
            result[image, :, top : top + len(rows), left : left + len(columns)] += weighted
    assert result is not None
    return result.clamp_(-1, 1)  # weights may add up to 1 and a rounding error


def blend_weights(span: Span, length: int, tiles: TileGrid) -> tuple[int, Tensor]:
    """The first pixel that a tile contributes to along an axis of `length` positions, and its weights from there on.

    They are 1, and fall to 0 over `margin` pixels across each border with another tile. The weights of all tiles at a pixel add up to 1.
    """
    factor = tiles.downsampling
    half = tiles.margin * factor // 2
    ramp = (torch.arange(2 * half, dtype=torch.float32) + 0.5) / max(1, 2 * half)
    first = span.first * factor - (half if span.first > 0 else 0)
    last = span.last * factor + (half if span.last < length else 0)
    weights = torch.ones(last - first)
    if span.first > 0:
        weights[: 2 * half] = ramp
    if span.last < length and half:
        weights[-2 * half :] = 1 - ramp
    return first, weights
