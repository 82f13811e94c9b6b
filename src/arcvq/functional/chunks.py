"""How the score matrix is cut: a block of tokens against a block of codes, small enough to stay out of the way."""

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

# Elements of the score block held at once, and codes across it. A CPU wants it near its caches and not long and thin: a product
# of a handful of tokens with all codes reads every code again for each handful. A GPU wants few launches, so all codes at once.
ELEMENTS = {"cpu": 2**20, "cuda": 2**25}
CODES = {"cpu": 2**11}
HAS_TRITON = importlib.util.find_spec("triton") is not None


def check_backend(backend: str) -> None:
    if backend not in BACKENDS:
        raise ArcvqError(f"unknown backend {backend!r}: expected one of {', '.join(BACKENDS)}")


def choose_backend(backend: Backend, latents: Tensor) -> Literal["reference", "chunked", "triton"]:
    """`auto` is the fused implementation on an NVIDIA GPU (Ampere or newer), the chunked one elsewhere, and while exporting the reference,
    whose plain operators any runtime knows.
    """
    check_backend(backend)
    if backend == "auto":
        if is_exporting():
            return "reference"
        return "triton" if latents.is_cuda and latents.dtype != torch.float64 and _fits(latents.device) else "chunked"
    if backend == "triton":
        if latents.dtype == torch.float64:
            raise ArcvqError("backend triton computes in float32: use chunked for float64")
        if not latents.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
            raise ArcvqError(f"backend triton needs CUDA tensors, got {latents.device}: use auto or chunked")
    return backend


def _fits(device: torch.device) -> bool:
    """The kernels want Triton and tensor cores that know TF32."""
    return HAS_TRITON and torch.version.cuda is not None and torch.cuda.get_device_capability(device) >= (8, 0)


def token_blocks(latents: Tensor, codes: Tensor) -> Iterator[slice]:
    """Slices of the N tokens, each small enough that (tokens × codes) stays within the budget."""
    budget = ELEMENTS.get(latents.device.type, ELEMENTS["cuda"])
    step = max(1, budget // max(1, codes.shape[0]))
    for start in range(0, latents.shape[0], step):
        yield slice(start, min(start + step, latents.shape[0]))


def code_blocks(codes: Tensor) -> Iterator[slice]:
    """Slices of the K codes, one where the device would rather have them all. The last takes what is left over: a block of very
    few codes would go through another product, whose last bits could break a tie."""
    total = codes.shape[0]
    step = CODES.get(codes.device.type, total)
    count = max(1, round(total / step))
    for i in range(count):
        yield slice(i * step, (i + 1) * step if i + 1 < count else total)


def check_pair(latents: Tensor, codebook: Tensor) -> None:
    """latents (N, D) beside codebook (K, D), or one line that says which of the two is wrong."""
    if latents.dim() != 2 or codebook.dim() != 2:
        raise ArcvqError(
            f"expected latents (N, D) and codebook (K, D), got shapes {tuple(latents.shape)} and {tuple(codebook.shape)}"
        )
    if latents.shape[1] != codebook.shape[1]:
        raise ArcvqError(f"latents are {latents.shape[1]} wide but the codebook's codes are {codebook.shape[1]} wide")
    if codebook.shape[0] < 1:
        raise ArcvqError("the codebook is empty: it needs at least one code")
