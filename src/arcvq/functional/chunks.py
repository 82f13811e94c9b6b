"""The choice of a backend, and the blocks of tokens and codes into which `chunked` cuts the score matrix."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from arcvq.errors import ArcvqError
from arcvq.functional.precision import is_exporting

Backend = Literal["auto", "reference", "chunked", "triton"]
BACKENDS: tuple[Backend, ...] = ("auto", "reference", "chunked", "triton")

# Scores in a block, and codes in it. On a CPU a block fits its caches and has not all of the codes: a product of few tokens with
# all codes would read every code again for each few tokens. A GPU takes all codes at once, for fewer launches.
BLOCK_ELEMENTS = {"cpu": 2**20, "cuda": 2**25}
BLOCK_CODES = {"cpu": 2**11}
HAS_TRITON = importlib.util.find_spec("triton") is not None


def check_backend(backend: str) -> None:
    """Raise unless this is a known backend."""
    if backend not in BACKENDS:
        raise ArcvqError(f"unknown backend {backend!r}: expected one of {', '.join(BACKENDS)}")


def choose_backend(backend: Backend, latents: Tensor) -> Literal["reference", "chunked", "triton"]:
    """The implementation that `backend` means for these latents; an error if it cannot run on them.

    `auto` is triton on an NVIDIA GPU (Ampere or newer), chunked elsewhere, and while exporting the reference, whose plain
    operators any runtime knows.
    """
    check_backend(backend)
    if backend == "auto":
        if is_exporting():
            return "reference"
        return (
            "triton"
            if latents.is_cuda and latents.dtype != torch.float64 and _has_kernels(latents.device)
            else "chunked"
        )
    if backend == "triton":
        if latents.dtype == torch.float64:
            raise ArcvqError("backend triton computes in float32: use chunked for float64")
        if not latents.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
            raise ArcvqError(f"backend triton needs CUDA tensors, got {latents.device}: use auto or chunked")
    return backend


def _has_kernels(device: torch.device) -> bool:
    """Whether the Triton kernels run on this GPU: Triton is installed and the tensor cores know TF32."""
    return HAS_TRITON and torch.version.cuda is not None and torch.cuda.get_device_capability(device) >= (8, 0)


def token_blocks(latents: Tensor, codes: Tensor) -> Iterator[slice]:
    """Slices of the N tokens, each so small that its scores with all these codes fit in a block."""
    budget = BLOCK_ELEMENTS.get(latents.device.type, BLOCK_ELEMENTS["cuda"])
    step = max(1, budget // max(1, codes.shape[0]))
    for start in range(0, latents.shape[0], step):
        yield slice(start, min(start + step, latents.shape[0]))


def code_blocks(codes: Tensor) -> Iterator[slice]:
    """Slices of the K codes; on a GPU a single one. The remainder joins the last: torch multiplies a block of very few codes by
    another algorithm, whose last bits could break a tie."""
    total = codes.shape[0]
    step = BLOCK_CODES.get(codes.device.type, total)
    count = max(1, round(total / step))
    for i in range(count):
        yield slice(i * step, (i + 1) * step if i + 1 < count else total)


def check_search_shapes(latents: Tensor, codebook: Tensor) -> None:
    """Raise unless these are latents (N, D) and a codebook (K, D) with at least one code."""
    if latents.dim() != 2 or codebook.dim() != 2:
        raise ArcvqError(
            f"expected latents (N, D) and codebook (K, D), got shapes {tuple(latents.shape)} and {tuple(codebook.shape)}"
        )
    if latents.shape[1] != codebook.shape[1]:
        raise ArcvqError(f"latents are {latents.shape[1]} wide but the codebook's codes are {codebook.shape[1]} wide")
    if codebook.shape[0] < 1:
        raise ArcvqError("the codebook is empty: it needs at least one code")
