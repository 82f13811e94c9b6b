"""Writes a tokenizer as two ONNX files, images → tokens and tokens → images, for runtimes without torch."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from arcvq.errors import ArcvqError
from arcvq.storage import atomic_folder, write_bytes
from arcvq.tokenizers.tokenizer import Tokenizer

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
# Positions of a grid along a side, at most.
MAX_GRID = 4096
# The share of tokens of random images that may differ: where two codes are equally near, but for rounding.
MAX_OTHER_TOKENS = 0.01

Grid = tuple[int, int]


@dataclass(frozen=True)
class OnnxExport:
    """A folder with encoder.onnx and decoder.onnx, and how they compare with the tokenizer on random images."""

    folder: Path
    same_tokens: float  # share
    pixel_difference: float  # the largest, of pixels in [-1, 1]


class _Encoder(nn.Module):
    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.tokenizer = tokenizer

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.tokenizer.quantize(self.tokenizer.latents(images)).tokens
        assert tokens is not None
        return tokens


class _Decoder(nn.Module):
    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.tokenizer = tokenizer

    def forward(self, tokens: Tensor) -> Tensor:
        return self.tokenizer.to_images(self.tokenizer.quantizer.decode(tokens)).clamp(-1, 1)


@torch.no_grad()
def export_onnx(tokenizer: Tokenizer, folder: Path) -> OnnxExport:
    """Write encoder.onnx (images → tokens) and decoder.onnx (tokens → images), and compare them with the tokenizer.

    Batch, height and width may be any; an autoencoder of a fixed size keeps that of its training images.
    """
    check_packages()
    tokenizer.quantizer.require_codebook()
    tokenizer = copy.deepcopy(tokenizer).to("cpu", torch.float32).eval()
    factor, fixed = tokenizer.downsampling, _fixed_grid(tokenizer)
    images = _random_images(tokenizer, 2, fixed or (6, 4))
    batch = torch.export.Dim("batch")
    image_sizes, grid_sizes = {0: batch}, {0: batch}
    if fixed is None:
        height, width = (torch.export.Dim(name, max=MAX_GRID) for name in ("height", "width"))
        image_sizes |= {2: factor * height, 3: factor * width}
        grid_sizes |= {1: height, 2: width}
    with atomic_folder(folder) as partial:
        tokens = tokenizer.encode(images)
        _write(_Encoder(tokenizer), images, image_sizes, partial / "encoder.onnx", "images", "tokens")
        _write(_Decoder(tokenizer), tokens, grid_sizes, partial / "decoder.onnx", "tokens", "images")
        write_bytes(partial / "README.md", _readme(tokenizer).encode())
        result = _compare(tokenizer, partial)
    return OnnxExport(folder, *result)


def check_packages() -> None:
    """Raise unless the packages of the extra `export` are there."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ArcvqError(f"the export to ONNX needs {' and '.join(missing)}: pip install 'arcvq[export]'")


def _write(module: nn.Module, example: Tensor, sizes: dict[int, Any], file: Path, given: str, returned: str) -> None:
    """Trace a module and write it. The tracer's warnings are about its own insides."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module.eval(),
                (example,),
                dynamo=True,
                dynamic_shapes={given: sizes},
                input_names=[given],
                output_names=[returned],
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        reason = " ".join(str(error.__cause__ or error).split())[:160]
        raise ArcvqError(f"torch cannot write this tokenizer's {file.stem} as ONNX ({reason})") from None
    assert program is not None
    program.save(file)


def _fixed_grid(tokenizer: Tokenizer) -> Grid | None:
    """Height and width of the grid of tokens, if the autoencoder takes images of one size only."""
    if not tokenizer.autoencoder.fixed_size or tokenizer.image_size is None:
        return None
    height, width = tokenizer.image_size
    return height // tokenizer.downsampling, width // tokenizer.downsampling


def _random_images(tokenizer: Tokenizer, number: int, grid: Grid) -> Tensor:
    """Images of random pixels, the same each time, whose tokens make this grid."""
    generator = torch.Generator().manual_seed(number)
    sides = (side * tokenizer.downsampling for side in grid)
    return torch.rand(number, tokenizer.channels, *sides, generator=generator) * 2 - 1


def _compare(tokenizer: Tokenizer, folder: Path) -> tuple[float, float]:
    """The share of equal tokens, and the largest difference of pixels, for another batch than the one that was traced."""
    import onnxruntime

    images = _random_images(tokenizer, 3, _fixed_grid(tokenizer) or (8, 10))
    tokens = tokenizer.encode(images)
    encoder, decoder = (onnxruntime.InferenceSession(folder / f"{name}.onnx") for name in ("encoder", "decoder"))
    theirs = torch.from_numpy(encoder.run(None, {"images": images.numpy()})[0])
    same = float((theirs == tokens).float().mean())
    decoded = torch.from_numpy(decoder.run(None, {"tokens": tokens.numpy()})[0])
    difference = float((decoded - tokenizer.decode(tokens)).abs().max())
    if same < 1 - MAX_OTHER_TOKENS or difference > 1e-2:
        raise ArcvqError(
            f"the exported files differ from the tokenizer ({same:.1%} of tokens the same, pixels off by up to {difference:.3g}): "
            "nothing was written"
        )
    return same, difference


def _readme(tokenizer: Tokenizer) -> str:
    """What goes into the files and comes out of them."""
    last = ", tokens per position" if tokenizer.quantizer.tokens_per_position > 1 else ""
    sides = f"H and W multiples of {tokenizer.downsampling}"
    if _fixed_grid(tokenizer) is not None and tokenizer.image_size is not None:
        sides = f"of {tokenizer.image_size[0]}×{tokenizer.image_size[1]} pixels"
    images = f"float32 (B, {tokenizer.channels}, H, W) in [-1, 1], {sides}"
    return f"""# {tokenizer.system or "arcvq"} tokenizer in ONNX

| file | takes | returns |
|---|---|---|
| `encoder.onnx` | `images`: {images} | `tokens`: int64 (B, h, w{last}) |
| `decoder.onnx` | `tokens` | `images` |

```python
import numpy as np
import onnxruntime

tokens = onnxruntime.InferenceSession("encoder.onnx").run(None, {{"images": images.astype(np.float32)}})[0]
images = onnxruntime.InferenceSession("decoder.onnx").run(None, {{"tokens": tokens}})[0]
```
"""
