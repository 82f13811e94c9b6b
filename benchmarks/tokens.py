"""A trained tokenizer in each precision: equal tokens, PSNR, speed and memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from arcvq.data import Images, load_images, to_unit
from arcvq.errors import ArcvqError
from arcvq.metrics import evaluate
from arcvq.tokenizers import Tokenizer
from arcvq.tokenizers.inference import PRECISIONS, Precision, check_precision
from benchmarks.measure import measure_cost

WAYS: dict[str, dict[str, bool]] = {"plain": {}, "channels last": {"channels_last": True}}


def load_model_and_images(model: str, data: str, device: torch.device, limit: int | None) -> tuple[Tokenizer, Images]:
    """The tokenizer, and the test images that fit it, on the device."""
    tokenizer = Tokenizer.from_pretrained(model, device=device)
    tokenizer.quantizer.require_codebook()
    images = load_images(data, split="test", image_size=tokenizer.image_size, limit=limit).to(device)
    if images.channels != tokenizer.channels:
        raise ArcvqError(f"{data} has {images.channels} channels but {model} takes {tokenizer.channels}")
    return tokenizer, images


def token_rows(
    model: str, images: Images, batch_size: int, device: torch.device, seconds: float
) -> Iterator[dict[str, Any]]:
    """A row per memory layout and precision, compared with contiguous fp32."""
    expected: tuple[Tensor, float] | None = None
    for way, options in WAYS.items():
        tokenizer = Tokenizer.from_pretrained(model, device=device).speed_up(**options)
        for precision in PRECISIONS:
            row = {"task": "tokens", "name": f"{precision} {way}", "precision": precision, "way": way}
            try:
                check_precision(precision, device)
            except ArcvqError as error:
                yield row | {"missing": str(error)}
                continue
            tokens, psnr = _measure_quality(tokenizer, images, precision, batch_size, device)
            expected = expected or (tokens, psnr)
            agreement = float((tokens == expected[0]).double().mean())
            quality = {"agreement": agreement, "psnr": psnr, "psnr_difference": psnr - expected[1]}
            yield row | quality | _measure_speed(tokenizer, images, precision, batch_size, device, seconds)


def _measure_quality(
    tokenizer: Tokenizer, images: Images, precision: Precision, batch_size: int, device: torch.device
) -> tuple[Tensor, float]:
    """The tokens of all images, and the mean PSNR under the protocol `exact`."""
    found: list[Tensor] = []

    def reconstruct(batch: Tensor) -> tuple[Tensor, Tensor]:
        tokens = tokenizer.encode(batch, precision=precision, batch_size=batch_size)
        found.append(tokens.cpu())
        return tokenizer.decode(tokens, precision=precision, batch_size=batch_size), tokens

    result = evaluate(reconstruct, images, metrics=["psnr"], batch_size=batch_size, device=device)
    return torch.cat(found), result.metrics["psnr"]


def _measure_speed(
    tokenizer: Tokenizer, images: Images, precision: Precision, batch_size: int, device: torch.device, seconds: float
) -> dict[str, float]:
    """Speed and memory of encoding and decoding one batch of 8-bit images that is already on the device."""
    pixels = images.gather(torch.arange(batch_size))
    tokens = tokenizer.encode(to_unit(pixels), precision=precision, batch_size=batch_size)
    steps = {
        "encode": lambda: tokenizer.encode(to_unit(pixels), precision=precision, batch_size=batch_size),
        "decode": lambda: tokenizer.decode(tokens, precision=precision, batch_size=batch_size),
    }
    row = {}
    for name, step in steps.items():
        measured = measure_cost(step, device, seconds)
        row[f"{name}_images_per_second"] = 1e3 * batch_size / measured["milliseconds"]
        row[f"{name}_mebibytes"] = measured["mebibytes"]
    return row
