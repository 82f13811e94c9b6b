"""Token files: the token grids of many images in one .npz, with their names."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from arcvq.errors import ArcvqError
from arcvq.storage import read_arrays, write_bytes

HeightWidth = tuple[int, int]


@dataclass(frozen=True)
class Tokens:
    """The content of a token file.

    tokens    (n, h, w); of grids that differ in size, all tokens of the first, row by row, then those of the second, and so on
    names     of the images
    codebook  fingerprint of the codes; None if unknown
    grids     rows and columns of each grid (n, 2), if they differ; else None
    sizes     height and width of each image (n, 2), if they were padded to fill their grids; else None
    """

    tokens: Tensor
    names: list[str]
    codebook: str | None = None
    grids: Tensor | None = None
    sizes: Tensor | None = None

    @classmethod
    def of(
        cls, batches: Sequence[Tensor], names: list[str], codebook: str | None, sizes: list[HeightWidth] | None
    ) -> Tokens:
        """The tokens of images, from batches of grids (b, h, w), and from the size of each image if any was padded."""
        shapes = [(batch.shape[1], batch.shape[2]) for batch in batches for _ in batch]
        equal = len(set(shapes)) == 1
        return cls(
            torch.cat([batch if equal else batch.flatten(0, 2) for batch in batches]),
            names,
            codebook,
            None if equal else torch.tensor(shapes),
            None if sizes is None else torch.tensor(sizes),
        )

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def shapes(self) -> list[HeightWidth]:
        """Rows and columns of each grid."""
        if self.grids is None:
            return [(self.tokens.shape[1], self.tokens.shape[2])] * len(self)
        return [(rows, columns) for rows, columns in self.grids.tolist()]

    def batch(self, start: int, stop: int) -> Tensor:
        """The grids from `start` to `stop`, which must be of one size, as (b, h, w)."""
        if self.grids is None:
            return self.tokens[start:stop]
        first, last = self._offsets[start], self._offsets[stop]
        return self.tokens[first:last].unflatten(0, (stop - start, *self.shapes[start]))

    @cached_property
    def _offsets(self) -> list[int]:
        """Where each grid begins among all tokens, and at last where they end."""
        return [0, *accumulate(rows * columns for rows, columns in self.shapes)]

    def save(self, path: Path) -> None:
        """Write a compressed .npz with the smallest integer type that holds the tokens."""
        buffer = io.BytesIO()
        smallest = np.uint16 if int(self.tokens.max()) < 2**16 else np.uint32
        arrays: dict[str, Any] = {
            "tokens": self.tokens.cpu().numpy().astype(smallest),
            "names": np.array(self.names, dtype=np.str_),
            "codebook": np.array(self.codebook or "", dtype=np.str_),
        }
        for name, pairs in (("grids", self.grids), ("sizes", self.sizes)):
            if pairs is not None:
                arrays[name] = pairs.numpy().astype(np.int32)
        np.savez_compressed(buffer, **arrays)
        write_bytes(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> Tokens:
        """Read an .npz with an integer array `tokens` (n, h, w); the other arrays are optional."""
        arrays = read_arrays(path, "token file")
        if "tokens" not in arrays:
            raise ArcvqError(f"{path}: holds no array called tokens")
        tokens, codebook = arrays["tokens"], str(arrays.get("codebook", ""))
        names = [str(name) for name in np.atleast_1d(arrays["names"])] if "names" in arrays else None
        if not np.issubdtype(tokens.dtype, np.integer):
            raise ArcvqError(f"{path}: tokens must be integers, got {tokens.dtype}")
        grids = read_pairs(arrays, "grids", path)
        if grids is None and (tokens.ndim < 3 or tokens.size == 0):
            raise ArcvqError(f"{path}: expected tokens (n, h, w), got shape {tokens.shape}")
        # Python's integers: products of untrusted sizes may overflow those of a tensor.
        total = None if grids is None else sum(rows * columns for rows, columns in grids.tolist())
        if total is not None and (tokens.ndim < 1 or tokens.size == 0 or len(tokens) != total):
            raise ArcvqError(f"{path}: tokens of shape {tokens.shape} do not fill the grids that it names")
        count = len(tokens) if grids is None else len(grids)
        if names is None:
            names = [f"{i:06d}" for i in range(count)]
        sizes = read_pairs(arrays, "sizes", path)
        for what, number in {"names": len(names), "sizes": count if sizes is None else len(sizes)}.items():
            if number != count:
                raise ArcvqError(f"{path}: has {count} token grids but {number} {what}")
        return cls(torch.from_numpy(tokens.astype(np.int64)), names, codebook or None, grids, sizes)


def read_pairs(arrays: dict[str, np.ndarray], name: str, path: Path) -> Tensor | None:
    """An array of heights and widths (n, 2), each from 1 to 2³¹, as int64; None if there is none."""
    if name not in arrays:
        return None
    pairs = arrays[name]
    valid = np.issubdtype(pairs.dtype, np.integer) and pairs.ndim == 2 and pairs.shape[1] == 2
    if not valid or not ((pairs > 0) & (pairs < 2**31)).all():
        raise ArcvqError(f"{path}: {name} must be heights and widths (n, 2), got {pairs.dtype} {pairs.shape}")
    return torch.from_numpy(pairs.astype(np.int64))
