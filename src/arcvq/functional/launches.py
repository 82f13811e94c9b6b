"""How the kernels are launched: into how many parts their work is cut, and without Triton's look at arguments that it knows."""

from __future__ import annotations

from typing import Any

import torch
import triton

# Programs that keep every multiprocessor of a large GPU busy: the axis that a kernel walks is split until there are that many.
PROGRAMS = 528


def cdiv(length: int, block: int) -> int:
    return -(-length // block)


def power_of_two(number: int) -> int:
    """The first that is not below."""
    return 1 << (number - 1).bit_length()


def parts_of(length: int, block: int, wanted: int, least: int) -> tuple[int, int]:
    """Into how many parts a kernel's walk is cut, and their size: whole blocks, at least `least` of them to a part."""
    blocks = cdiv(max(1, length), block)
    size = cdiv(blocks, max(1, min(wanted, blocks // least)))
    return cdiv(blocks, size), size * block


# Kernels compiled before, by everything that Triton looks at to tell whether one will do.
_ready: dict[tuple[Any, ...], Any] = {}


def launch(
    kernel: Any, grid: tuple[int, ...], given: tuple[Any, ...], arguments: tuple[Any, ...], **constants: Any
) -> None:
    """`kernel[grid](*arguments, **constants)`, without looking at each argument again where an earlier call was alike: that takes
    the host longer than the device takes for a small kernel.

    `given` are the arguments that may differ between such calls in type or alignment, and the integers that Triton specialises on. All
    other tensors are the caller's own, fresh from the allocator and so aligned alike. Constants in the order of the kernel's signature.
    """
    if not isinstance(kernel, triton.JITFunction):  # the interpreter's
        kernel[grid](*arguments, **constants)
        return
    kinds = (x if isinstance(x, int) else (x.dtype, x.data_ptr() % 16) for x in given)
    key = (id(kernel), torch.cuda.current_device(), *constants.values(), *kinds)
    ready = _ready.get(key)
    if ready is None:
        _ready[key] = kernel[grid](*arguments, **constants)
    else:
        own = (value for name, value in constants.items() if name not in ("num_warps", "num_stages"))
        ready[(*grid, 1, 1)[:3]](*arguments, *own)
