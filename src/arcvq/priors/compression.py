"""Pictures ↔ small files: a tokenizer's tokens, entropy-coded."""

from __future__ import annotations

import platform
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from arcvq.errors import ArcvqError
from arcvq.priors.autoregressive import AutoregressivePrior
from arcvq.priors.entropy_coding import coder, decode_by_prior, decode_by_table, encode_by_prior, encode_by_table
from arcvq.priors.generator import Generator, part_of
from arcvq.priors.prior import FREQUENCY_TOTAL, Grid, Progress
from arcvq.priors.saving import generator_fingerprint
from arcvq.tokenizers import Tile

Mode = Literal["portable", "prior"]
MODES: tuple[Mode, ...] = ("portable", "prior")
# The last byte is the version of the format.
MAGIC = b"arcvq\x03"
# Mode, height, width, class + 1, fingerprint of the model, length of the text about what wrote the file. The text follows, then the
# checksum of all bytes so far.
HEADER = struct.Struct("<BIIIQB")
# Checksum of the rest of the part: the checksum of its tokens, how many words it has, and the words. So a file that is damaged is told
# from one whose words mean other tokens here.
PART = struct.Struct("<III")
CHECKSUM = struct.Struct("<I")
# A picture that a file may ask for.
MAX_PIXELS = 2**28


@dataclass(frozen=True)
class Compressed:
    """A compressed picture.

    content             the bytes of the file
    payload_bits        those of the tokens alone
    cross_entropy_bits  what the prior's probabilities cost without a coder; None in the portable mode
    """

    content: bytes
    payload_bits: int
    cross_entropy_bits: float | None


@dataclass(frozen=True)
class Header:
    mode: Mode
    height: int
    width: int
    label: int | None
    fingerprint: int
    writer: str

    def pack(self) -> bytes:
        writer = self.writer.encode()[:255]
        label = 0 if self.label is None else self.label + 1
        fields = (MODES.index(self.mode), self.height, self.width, label, self.fingerprint, len(writer))
        content = MAGIC + HEADER.pack(*fields) + writer
        return content + CHECKSUM.pack(zlib.crc32(content))

    @classmethod
    def unpack(cls, content: bytes) -> tuple[Header, int]:
        """The header and where it ends."""
        if content[: len(MAGIC)] != MAGIC:
            raise ArcvqError("not a picture compressed by this version of arcvq")
        start = len(MAGIC) + HEADER.size
        if len(content) < start:
            raise ArcvqError("the file is truncated")
        mode, height, width, label, fingerprint, length = HEADER.unpack_from(content, len(MAGIC))
        end = start + length
        if len(content) < end + CHECKSUM.size:
            raise ArcvqError("the file is damaged or truncated")
        if CHECKSUM.unpack_from(content, end) != (zlib.crc32(content[:end]),):
            raise ArcvqError("the file is damaged: the checksum of its header does not match")
        if mode >= len(MODES) or not 0 < height * width <= MAX_PIXELS:
            raise ArcvqError(f"not a file that arcvq writes: it is a picture of {height}×{width} in mode {mode}")
        text = content[start:end].decode(errors="replace")
        writer = "".join(each if each.isprintable() else "?" for each in text)
        return cls(MODES[mode], height, width, label - 1 if label else None, fingerprint, writer), end + CHECKSUM.size


def compress(
    generator: Generator,
    pixels: Tensor,
    *,
    mode: Mode = "portable",
    label: int | None = None,
    progress: Progress | None = None,
) -> Compressed:
    """Compress a picture, floats (C, H, W) in [-1, 1] of any size.

    portable  by the frequencies of the training tokens: decodes on any machine
    prior     by the prior's probabilities: smaller, slower, and it decodes where the same versions compute the same numbers.
              The file is decoded once before it is returned.
    """
    check_mode(generator, mode)
    _check_class(generator, label)
    height, width = pixels.shape[-2:]
    tokens = picture_tokens(generator, pixels)
    header = Header(mode, height, width, label, generator_fingerprint(generator), writer(mode))
    parts, bits, payload = [header.pack()], 0.0, 0
    blocks = list(token_blocks(generator.prior.grid, tokens.shape[:2]))
    for number, (rows, columns) in enumerate(blocks):
        block = tokens[rows, columns]
        if mode == "prior":
            report = part_of(progress, number, len(blocks))
            words, cost = _encode_block(generator, block, label, report)
            bits += cost
        else:
            words = encode_by_table(block.flatten(0, 1), table_of(generator))
        parts.append(_pack_part(block, words))
        payload += 32 * len(words)
    content = b"".join(parts)
    if mode == "prior":
        try:
            same = torch.equal(decompress_tokens(generator, content), tokens)
        except ArcvqError:
            same = False
        if not same:
            raise ArcvqError("this machine computes other probabilities each time: compress in the portable mode")
    return Compressed(content, payload, bits if mode == "prior" else None)


def decompress(generator: Generator, content: bytes, progress: Progress | None = None) -> Tensor:
    """The picture of a compressed file, floats (C, H, W) in [-1, 1]."""
    header, _ = Header.unpack(content)
    tokens = decompress_tokens(generator, content, progress)
    grid = _as_grid(tokens)[None]
    images = generator.tokenizer.decode(grid, tile=compression_tile(generator, *tokens.shape[:2]))
    return images[0, :, : header.height, : header.width]


def decompress_tokens(generator: Generator, content: bytes, progress: Progress | None = None) -> Tensor:
    """The tokens of a compressed file, (rows, columns, levels)."""
    header, place = Header.unpack(content)
    check_mode(generator, header.mode)
    if header.fingerprint != generator_fingerprint(generator):
        raise ArcvqError("the file was compressed with another model: use the one that wrote it")
    _check_class(generator, header.label)
    side, grid = generator.tokenizer.downsampling, generator.prior.grid
    height, width = -(-header.height // side), -(-header.width // side)
    count = -(-height // grid.height) * -(-width // grid.width)
    # Before anything is allocated, because a small file can claim any size.
    if count * PART.size > len(content) - place:
        raise ArcvqError(
            f"the file is truncated: a picture of {header.height}×{header.width} has {count} parts, and they cannot fit into it"
        )
    parts = _read_parts(content, place, count)
    tokens = torch.zeros(height, width, grid.depth, dtype=torch.int64)
    for number, (rows, columns) in enumerate(token_blocks(grid, tokens.shape[:2])):
        block = tokens[rows, columns]
        expected, words = parts[number]
        try:
            found = _decode_block(generator, words, block.shape, header, part_of(progress, number, count))
        except AssertionError:  # the coder's answer to words that it cannot have written
            found = None
        if found is None or checksum(found) != expected:
            raise ArcvqError(f"part {number + 1} of {count} does not decode: {_reason(header)}")
        tokens[rows, columns] = found
    return tokens


def check_mode(generator: Generator, mode: str) -> None:
    """Raise unless this generator can compress in this mode."""
    if mode not in MODES:
        raise ArcvqError(f"unknown mode {mode!r}: expected one of {', '.join(MODES)}")
    prior = generator.prior
    if prior.models != "tokens":
        raise ArcvqError(f"{type(prior).__name__} is over latents: compression needs a prior over tokens")
    if mode == "prior" and not isinstance(prior, AutoregressivePrior):
        raise ArcvqError(
            f"{type(prior).__name__} gives no probability of each token in turn: use the portable mode, or a prior that "
            "predicts one token after another (gpt, pixelcnn, rq-transformer)"
        )
    if prior.device.type != "cpu":
        raise ArcvqError("compression runs on the CPU, so that files do not depend on a GPU: load the generator there")


def picture_tokens(generator: Generator, pixels: Tensor) -> Tensor:
    """The tokens (rows, columns, levels) of a picture; its lower and right edge are repeated up to a whole token."""
    tokenizer = generator.tokenizer
    side = tokenizer.downsampling
    bottom, right = (-length % side for length in pixels.shape[-2:])
    padded = F.pad(pixels[None], (0, right, 0, bottom), mode="replicate")
    tile = compression_tile(generator, padded.shape[-2] // side, padded.shape[-1] // side)
    tokens = tokenizer.encode(padded, tile=tile)[0]
    return tokens if tokens.dim() == 3 else tokens[..., None]


def compression_tile(generator: Generator, rows: int, columns: int) -> Tile | None:
    """The tile with which the tokenizer encodes and decodes a picture of rows × columns tokens; None: without tiles."""
    grid, side = generator.prior.grid, generator.tokenizer.downsampling
    edge = min(grid.height, grid.width)
    if (rows <= grid.height and columns <= grid.width) or edge < 4:
        return None
    return Tile(edge * side, max(1, edge // 8) * side)


def token_blocks(grid: Grid, shape: tuple[int, ...]) -> Iterator[tuple[slice, slice]]:
    """The parts of a token grid that are coded one after another: as large as the prior's grid, smaller at the edges."""
    for top in range(0, shape[0], grid.height):
        for left in range(0, shape[1], grid.width):
            yield slice(top, top + grid.height), slice(left, left + grid.width)


def table_of(generator: Generator) -> Tensor:
    """The probabilities (levels, K) of the portable mode: whole frequencies divided by a power of two, equal on every machine."""
    return generator.prior.frequencies.double() / FREQUENCY_TOTAL


def checksum(tokens: Tensor) -> int:
    return zlib.crc32(np.ascontiguousarray(tokens.numpy()).astype("<i4").tobytes())


def writer(mode: Mode) -> str:
    """What the words of a file depend on beside the model: in the mode `prior`, whatever computes its probabilities."""
    coder()
    name = f"constriction {version('constriction')}"
    if mode == "portable":
        return name
    packages = f"arcvq {version('arcvq')}, torch {torch.__version__}"
    return f"{packages}, {torch.backends.cpu.get_cpu_capability()}, {cpu_model()}, {name}"


@cache
def cpu_model() -> str:
    """The model of the CPU, at most 48 characters."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:  # only Linux has it
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return (names[0] if names else platform.processor() or platform.machine())[:48]


def _check_class(generator: Generator, label: int | None) -> None:
    if label is not None and not 0 <= label < generator.prior.grid.classes:
        raise ArcvqError(f"class {label} is out of range: the prior has {generator.prior.grid.classes} classes")


def _pack_part(tokens: Tensor, words: np.ndarray) -> bytes:
    """One part of a file, with the checksums of its bytes and of its tokens."""
    rest = struct.pack("<II", checksum(tokens), len(words)) + words.astype("<u4").tobytes()
    return CHECKSUM.pack(zlib.crc32(rest)) + rest


def _read_parts(content: bytes, place: int, count: int) -> list[tuple[int, np.ndarray]]:
    """The checksum of the tokens and the words of all parts, the first of which begins at `place`. Raises if bytes are damaged."""
    parts = []
    for name in (f"part {number + 1} of {count}" for number in range(count)):
        start = place + PART.size
        if len(content) < start:
            raise ArcvqError(f"the file is truncated: {name} is missing")
        expected, tokens, words = PART.unpack_from(content, place)
        end = start + 4 * words
        if len(content) < end:
            raise ArcvqError(f"the file is damaged or truncated in {name}")
        if zlib.crc32(content[place + CHECKSUM.size : end]) != expected:
            raise ArcvqError(f"the file is damaged: the checksum of {name} does not match")
        parts.append((tokens, np.frombuffer(content, dtype="<u4", count=words, offset=start).astype(np.uint32)))
        place = end
    if place != len(content):
        raise ArcvqError("the file is damaged: it goes on after its last part")
    return parts


def _encode_block(
    generator: Generator, block: Tensor, label: int | None, progress: Progress | None
) -> tuple[np.ndarray, float]:
    """The words and the cross-entropy of one part, in the mode `prior`."""
    prior = _autoregressive(generator)
    whole = torch.zeros(prior.grid.height, prior.grid.width, prior.grid.depth, dtype=torch.int64)
    whole[: block.shape[0], : block.shape[1]] = block
    coded = _coded(prior.grid, block.shape)
    return encode_by_prior(prior, whole.flatten(), coded, label, progress)


def _decode_block(
    generator: Generator, words: np.ndarray, shape: torch.Size, header: Header, progress: Progress | None
) -> Tensor:
    """The tokens of one part."""
    grid = generator.prior.grid
    if header.mode == "portable":
        found = decode_by_table(words, shape[0] * shape[1], table_of(generator))
        return found.view(shape)
    prior = _autoregressive(generator)
    coded = _coded(grid, shape)
    tokens = decode_by_prior(prior, words, coded, header.label, progress)
    return tokens.view(grid.height, grid.width, grid.depth)[: shape[0], : shape[1]]


def _coded(grid: Grid, shape: torch.Size) -> Tensor:
    """Which tokens of the prior's grid are inside the picture, bool (length,)."""
    inside = torch.zeros(grid.height, grid.width, grid.depth, dtype=torch.bool)
    inside[: shape[0], : shape[1]] = True
    return inside.flatten()


def _autoregressive(generator: Generator) -> AutoregressivePrior:
    assert isinstance(generator.prior, AutoregressivePrior)
    return generator.prior


def _as_grid(tokens: Tensor) -> Tensor:
    """Tokens as a tokenizer takes them: (rows, columns), or with several per position (rows, columns, levels)."""
    return tokens[..., 0] if tokens.shape[-1] == 1 else tokens


def _reason(header: Header) -> str:
    """Why a part whose bytes are as they were written does not decode."""
    here = writer(header.mode)
    if header.mode == "portable":
        return f"it was written with {header.writer}, and this is {here}: decode it there"
    return (
        f"this machine ({here}) computes other probabilities than the one that wrote the file ({header.writer}): decode it "
        "there, or compress in the portable mode"
    )
