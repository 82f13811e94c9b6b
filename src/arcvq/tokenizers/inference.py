"""How a tokenizer is run over many images: on which device, how many at a time, and in which precision its trunk computes."""

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
HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}

# Pixels at a time that keep a device busy: more is only memory. 4,096 images of 32 × 32 on a GPU, 256 on a CPU.
PIXELS = {"cuda": 2**22, "cpu": 2**18}
# Float32 maps of the image's size that a pass holds for each channel of the trunk's width, with room for what a library takes.
MAPS = 2
# Of the free memory, what a batch may count on.
SHARE = 0.5


def choose_device(name: str | None) -> torch.device:
    """By name; without one, a GPU if there is one."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise ArcvqError(f"unknown device {name!r}: expected cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ArcvqError("no CUDA device is to be found here: use --device cpu")
    return device


def check_precision(precision: str, device: torch.device) -> None:
    if precision not in PRECISIONS:
        raise ArcvqError(f"unknown precision {precision!r}: expected one of {', '.join(PRECISIONS)}")
    if precision == "tf32" and device.type != "cuda":
        raise ArcvqError("precision tf32 needs an NVIDIA GPU: on a CPU use fp32 or bf16")


@contextmanager
def trunk_precision(precision: Precision, device: torch.device) -> Iterator[None]:
    """For the encoder and the decoder, each by itself: the quantizer between them stays in float32. An autocast around the call
    does not count: the precision is the one asked for."""
    halved = torch.autocast(device.type, HALVES.get(precision), enabled=precision in HALVES)
    with convolution_precision("tf32" if precision == "tf32" else "ieee"), halved:
        yield


@contextmanager
def plain_float32(tensor: Tensor) -> Iterator[None]:
    """For the quantizer and its projections: whatever autocast and the matmul switches say around the call."""
    if torch.compiler.is_compiling():  # a traced graph has its precision settled when it is compiled
        yield
        return
    with ieee_matmul(tensor):
        yield


def images_at_once(height: int, width: int, trunk_width: int, device: torch.device) -> int:
    """Enough to keep the device busy, and on a GPU no more than fit into half of what is free."""
    pixels = max(1, height * width)
    enough = max(1, PIXELS.get(device.type, PIXELS["cuda"]) // pixels)
    if device.type != "cuda":
        return enough
    free = torch.cuda.mem_get_info(device)[0]
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # kept by torch, and free for us
    return max(1, min(enough, int(SHARE * free) // (4 * MAPS * trunk_width * pixels)))
