"""A trained tokenizer in each precision: how many tokens stay the same, what the images lose, how fast it goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arcvq.bench.measure import cost
from arcvq.bench.suite import machine
from arcvq.data import Images, load_images, to_unit
from arcvq.errors import ArcvqError
from arcvq.metrics import evaluate
from arcvq.tokenizers import Tokenizer
from arcvq.tokenizers.inference import PRECISIONS, Precision, check_precision


def run_tokens(
    model: str,
    data: str,
    device: torch.device,
    *,
    root: Path | None = None,
    limit: int | None = None,
    batch_size: int | None = None,
    seconds: float = 0.5,
    channels_last: bool = False,
    compile: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """One row per precision and way of running: token agreement with plain fp32, PSNR, images a second, memory.

    `channels_last` and `compile` each add their rows to the plain ones; both together, compiled with the channels last.
    """
    look = Tokenizer.from_pretrained(model, device=device)
    look.quantizer.require_codebook()
    images = load_images(data, split="test", root=root, image_size=look.side, limit=limit).to(device)
    if images.channels != look.channels:
        raise ArcvqError(f"{data} has {images.channels} channels but the tokenizer takes {look.channels}")
    size = min(len(images), batch_size or look.batch_size(images.height, images.width))
    ways: dict[str, dict[str, bool]] = {"plain": {}}
    if channels_last:
        ways["channels last"] = {"channels_last": True}
    if compile:
        ways["compiled"] = {"compile": True, "channels_last": channels_last}
    rows: list[dict[str, Any]] = []
    first: tuple[Tensor, float] | None = None  # tokens and PSNR of plain fp32
    for way, options in ways.items():
        tokenizer = Tokenizer.from_pretrained(model, device=device).speed_up(**options)
        for precision in PRECISIONS:
            row: dict[str, Any] = {"task": "tokens", "name": f"{precision} {way}", "precision": precision, "way": way}
            try:
                check_precision(precision, device)
            except ArcvqError as error:
                rows.append({**row, "missing": str(error).split(":")[0].removeprefix(f"precision {precision} ")})
            else:
                tokens, psnr = _quality(tokenizer, images, precision, size, device)
                first = first or (tokens, psnr)
                agreement = float((tokens == first[0]).double().mean())
                numbers = {"agreement": agreement, "psnr": psnr, "psnr_difference": psnr - first[1]}
                rows.append({**row, **numbers, **_speed(tokenizer, images, precision, size, device, seconds)})
            if progress is not None:
                progress("tokens", len(rows), len(ways) * len(PRECISIONS))
    described = {"model": Path(model).name, "data": data, "images": len(images), "batch_size": size}
    return {**machine(device), "suite": "tokens", **described, "rows": rows}


def _quality(
    tokenizer: Tokenizer, images: Images, precision: Precision, size: int, device: torch.device
) -> tuple[Tensor, float]:
    """All tokens, and the mean PSNR under the protocol `exact`."""
    found: list[Tensor] = []

    def reconstruct(batch: Tensor) -> tuple[Tensor, Tensor]:
        tokens = tokenizer.encode(batch, precision=precision, batch_size=size)
        found.append(tokens.cpu())
        return tokenizer.decode(tokens, precision=precision, batch_size=size), tokens

    result = evaluate(reconstruct, images, metrics=["psnr"], batch_size=size, device=device)
    return torch.cat(found), result.metrics["psnr"]


def _speed(
    tokenizer: Tokenizer, images: Images, precision: Precision, size: int, device: torch.device, seconds: float
) -> dict[str, float]:
    """Of one full batch that is already on the device, as bytes: tokenising, and detokenising."""
    pixels = images.gather(torch.arange(size))
    tokens = tokenizer.encode(to_unit(pixels), precision=precision, batch_size=size)
    encoding = cost(lambda: tokenizer.encode(to_unit(pixels), precision=precision, batch_size=size), device, seconds)
    decoding = cost(lambda: tokenizer.decode(tokens, precision=precision, batch_size=size), device, seconds)
    return {
        "encode_images_per_second": 1e3 * size / encoding.milliseconds,
        "decode_images_per_second": 1e3 * size / decoding.milliseconds,
        "encode_mebibytes": encoding.mebibytes,
        "decode_mebibytes": decoding.mebibytes,
    }
