"""Launching kernels: how many parts their work is split into, and a launch that skips Triton's check of every argument."""

from __future__ import annotations

from typing import Any

import torch
import triton

# Programs that keep every multiprocessor of a large GPU busy. With fewer, the axis that a kernel loops over is split.
PROGRAMS = 528


def cdiv(length: int, block: int) -> int:
    """length / block, rounded up."""
    return -(-length // block)


def next_power_of_two(number: int) -> int:
    """The smallest power of two that is at least `number`."""
    return 1 << (number - 1).bit_length()


def split_into_parts(length: int, block: int, wanted: int, min_blocks: int) -> tuple[int, int]:
    """The number of parts of an axis and their size: about `wanted` parts of whole blocks, at least `min_blocks` in each."""
    blocks = cdiv(max(1, length), block)
    size = cdiv(blocks, max(1, min(wanted, blocks // min_blocks)))
    return cdiv(blocks, size), size * block


# Compiled kernels, by everything that Triton compiles another one for.
_compiled: dict[tuple[Any, ...], Any] = {}


def launch(
    kernel: Any, grid: tuple[int, ...], varying: tuple[Any, ...], arguments: tuple[Any, ...], **constants: Any
) -> None:
    """`kernel[grid](*arguments, **constants)`, faster after the first such call: Triton's check of all arguments is skipped.

    That check takes the host longer than a small kernel takes the device. `varying` are the arguments whose type or alignment may
    differ between calls, and the integers that Triton specialises on. All other tensors are the caller's own, allocated and so
    aligned in the same way. The constants come in the order of the kernel's signature.
    """
    if not isinstance(kernel, triton.JITFunction):  # the interpreter's
        kernel[grid](*arguments, **constants)
        return
    kinds = (x if isinstance(x, int) else (x.dtype, x.data_ptr() % 16) for x in varying)
    key = (id(kernel), torch.cuda.current_device(), *constants.values(), *kinds)
    compiled = _compiled.get(key)
    if compiled is None:
        _compiled[key] = kernel[grid](*arguments, **constants)
    else:
        own = (value for name, value in constants.items() if name not in ("num_warps", "num_stages"))
        compiled[(*grid, 1, 1)[:3]](*arguments, *own)
