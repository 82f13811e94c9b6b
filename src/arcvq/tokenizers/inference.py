"""Settings for encoding many images: device, batch size and the precision of encoder and decoder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from arcvq.errors import ArcvqError
from arcvq.functional.precision import convolution_precision, ieee_matmul

Precision = Literal["fp32", "tf32", "fp16", "bf16"]
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "fp16", "bf16")
HALF_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}

# Pixels in a batch that keep a device busy: 4,096 images of 32 × 32 on a GPU, 256 on a CPU.
PIXELS_PER_BATCH = {"cuda": 2**22, "cpu": 2**18}
# Float32 maps of the image's size that a pass needs for each channel of its width, with room for libraries.
MAPS_PER_CHANNEL = 2
# The share of the free memory that a batch may use.
MEMORY_SHARE = 0.5


def choose_device(name: str | None) -> torch.device:
    """The device of this name; without a name, a GPU if there is one."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise ArcvqError(f"unknown device {name!r}: expected cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ArcvqError("no CUDA device was found: use --device cpu")
    return device


def check_precision(precision: str, device: torch.device) -> None:
    """Raise if the precision is unknown or the device does not have it."""
    if precision not in PRECISIONS:
        raise ArcvqError(f"unknown precision {precision!r}: expected one of {', '.join(PRECISIONS)}")
    if precision == "tf32" and device.type != "cuda":
        raise ArcvqError("precision tf32 needs an NVIDIA GPU: on a CPU use fp32 or bf16")


@contextmanager
def trunk_precision(precision: Precision, device: torch.device) -> Iterator[None]:
    """Run the encoder or the decoder in this precision, whatever autocast is active around the call."""
    halved = torch.autocast(device.type, HALF_DTYPES.get(precision), enabled=precision in HALF_DTYPES)
    with convolution_precision("tf32" if precision == "tf32" else "ieee"), halved:
        yield


@contextmanager
def float32_quantizer(tensor: Tensor) -> Iterator[None]:
    """Run the quantizer in full float32, whatever autocast and matmul settings are active around the call."""
    if torch.compiler.is_compiling():  # a compiled graph has a fixed precision
        yield
        return
    with ieee_matmul(tensor):
        yield


def inference_batch_size(height: int, width: int, trunk_width: int, device: torch.device) -> int:
    """Images per batch: enough to keep the device busy, and on a GPU no more than fit into half of the free memory."""
    pixels = max(1, height * width)
    wanted = max(1, PIXELS_PER_BATCH.get(device.type, PIXELS_PER_BATCH["cuda"]) // pixels)
    if device.type != "cuda":
        return wanted
    free = torch.cuda.mem_get_info(device)[0]
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # cached by torch and free to use
    return max(1, min(wanted, int(MEMORY_SHARE * free) // (4 * MAPS_PER_CHANNEL * trunk_width * pixels)))
