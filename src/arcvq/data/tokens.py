"""Token grids in tar shards: read from any place, in any order."""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from arcvq.data.reading import read_in_threads
from arcvq.data.shard_index import INDEX, TOKEN_HEADER, ShardIndex, describe_shards
from arcvq.errors import ArcvqError
from arcvq.storage import read_json

HEADER = TOKEN_HEADER
FORMAT = "arcvq-tokens-1"
DTYPES = {"uint16": "<u2", "int32": "<i4"}


@dataclass(frozen=True, kw_only=True)
class TokenHeader:
    """What all tokens of a folder of shards have in common, and how they were made.

    codebook, tokenizer  hashes of the codes and of all weights
    grid                 the shape of an image's tokens: rows, columns and, if there are several, tokens per position
    codebook_size        above every token
    dtype                uint16 or int32
    image_size           height and width of the images
    chunk                how many images were encoded at a time; the last ones are padded with blank ones
    precision, device    of the encoder
    source               name and size in bytes of the shards that hold the images
    """

    codebook: str
    tokenizer: str
    grid: tuple[int, ...]
    codebook_size: int
    dtype: str
    image_size: tuple[int, int]
    chunk: int
    precision: str
    device: str
    source: list[dict[str, Any]] = field(default_factory=list)
    format: str = FORMAT

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "grid": list(self.grid), "image_size": list(self.image_size)}

    @classmethod
    def load(cls, folder: Path) -> TokenHeader:
        """Read and check the header of a folder of token shards."""
        data = read_json(folder / HEADER, "a folder of token shards")
        try:
            if data.get("format") != FORMAT:
                raise TypeError
            header = cls(**{**data, "grid": tuple(data["grid"]), "image_size": tuple(data["image_size"])})
        except (TypeError, KeyError):
            raise ArcvqError(f"{folder / HEADER}: not a header of token shards in the format {FORMAT}") from None
        sizes = [*header.grid, header.codebook_size]
        if not (2 <= len(header.grid) <= 4 and all(type(size) is int and 0 < size < 2**31 for size in sizes)):
            raise ArcvqError(f"{folder / HEADER}: no grid of tokens: {list(header.grid)}")
        if header.dtype not in DTYPES:
            raise ArcvqError(f"{folder / HEADER}: unknown dtype {header.dtype!r}: expected one of {', '.join(DTYPES)}")
        return header

    def pack(self, tokens: Tensor) -> bytes:
        """A token grid as an .npy file."""
        return self.npy_header + tokens.cpu().numpy().astype(DTYPES[self.dtype]).tobytes()

    def unpack(self, content: bytes, name: Path) -> np.ndarray:
        """The token grid of an .npy file, int64; an error that names it if it is not one of this header's."""
        start = self.npy_header
        if content[: len(start)] != start or len(content) != len(start) + self.grid_bytes:
            raise ArcvqError(f"{name}: not a token grid of shape {list(self.grid)}, {self.dtype}")
        grid = np.frombuffer(content, dtype=DTYPES[self.dtype], offset=len(start)).reshape(self.grid).astype(np.int64)
        if grid.min() < 0 or grid.max() >= self.codebook_size:
            raise ArcvqError(f"{name}: has tokens outside 0 to {self.codebook_size - 1}")
        return grid

    @property
    def npy_header(self) -> bytes:
        start = io.BytesIO()
        about = {"descr": DTYPES[self.dtype], "fortran_order": False, "shape": self.grid}
        np.lib.format.write_array_header_1_0(start, about)
        return start.getvalue()

    @property
    def grid_bytes(self) -> int:
        return prod(self.grid) * np.dtype(DTYPES[self.dtype]).itemsize


class TokenShards:
    """A folder of token shards that `arcvq encode` has finished: `gather` reads grids by index; `keys`, `labels`, `class_names`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.header = folder, TokenHeader.load(folder)
        index = ShardIndex.load(folder / INDEX, folder)
        if index is None:
            raise ArcvqError(f"{folder}: the token shards are not finished: run the same encode again")
        sizes = {shard["name"]: shard["bytes"] for shard in describe_shards(folder)}
        for shard in index.shards:
            if sizes.get(shard["name"]) != shard["bytes"]:
                raise ArcvqError(f"{folder / shard['name']}: missing or changed since it was encoded: encode it again")
        self.index, self.keys, self.class_names = index, index.keys, index.class_names
        self.labels = torch.from_numpy(index.fields["label"]) if index.labelled else None

    def __len__(self) -> int:
        return len(self.keys)

    def gather(self, indices: Tensor) -> Tensor:
        """The token grids at int64 indices (B,), as int64 (B, *grid) on the CPU; threads read them."""
        read = read_in_threads(indices.tolist(), self._read)
        grids = [grid for grid in read if isinstance(grid, np.ndarray)]  # other errors are raised
        return torch.from_numpy(np.stack(grids)) if grids else torch.empty(0, *self.header.grid, dtype=torch.int64)

    def _read(self, index: int) -> np.ndarray:
        return self.header.unpack(self.index.read(index), self.index.sample_path(index))
