"""The Triton kernels in Triton's interpreter, in another process, because it is switched on before Triton is imported."""

import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from arcvq import ArcvqError, functional

CASES = [
    Path(__file__).with_name(f"{name}_kernel_cases.py") for name in ("fused", "lookup", "norm", "bias", "unit_distance")
]


def test_kernels_equal_reference_in_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *map(str, CASES)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout[-4000:]
    passed = re.search(r"(\d+) passed", finished.stdout)
    assert passed is not None, finished.stdout[-2000:]
    assert int(passed[1]) >= 160


@pytest.mark.parametrize(("dtype", "reason"), [(torch.float32, "needs CUDA tensors"), (torch.float64, "in float32")])
def test_triton_backend_raises_where_it_cannot_run(
    dtype: torch.dtype, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ArcvqError, match=reason):
        functional.assign(torch.zeros(3, 2, dtype=dtype), torch.zeros(4, 2, dtype=dtype), backend="triton")


NUMBERS = {
    "score_error",
    "scale",
    "min_norm",
    "split_norm",
    "largest_pull",
    "gradient_scale",
    "pull_scale",
    "cos_margin",
    "sin_margin",
    "smallest_sine",
    "eps",
    "epsilon",
}
COUNTS = {"width", "splits", "split_size", "blocks", "positions", "channels", "count", "part_size"}
LONG, SHORT, HALF, COARSE = "*i64", "*i32", "*fp16", "*bf16"
POINTERS = {
    **dict.fromkeys(("high", "other_high", "q_high_ptr", "k_high_ptr", "z_high_ptr", "c_high_ptr"), HALF),
    **dict.fromkeys(("part_tokens", "pulled_tokens", "carry_keys", "counts"), SHORT),
    **dict.fromkeys(("tokens", "top_tokens", "order"), LONG),
    **dict.fromkeys(("x", "y", "grad", "x_grad", "other"), COARSE),
    "sorted_keys": "*i16",
    "valid": "*i1",
}
CONSTANTS = {
    **dict.fromkeys(
        ("BIASED", "MASKED", "MONOTONE", "SHARED_NORM", "FINISH", "FINAL", "FIRST", "SILU", "OFFSET", "OTHER"), True
    ),
    **dict.fromkeys(("QUERIES", "KEYS", "CODES", "TOKENS", "ROWS", "COLUMNS", "ENTRIES", "SPLITS", "BINS"), 64),
    **dict.fromkeys(("DEPTH", "PIECE", "OUT"), 16),
    **dict.fromkeys(("TOP", "PARTS", "STAGES"), 3),
    "SLOTS": 4,
}
KERNELS = (
    "row_kernels._split_kernel",
    "search_kernels._search_kernel",
    "search_kernels._merge_search_kernel",
    "arc_kernels._statistics_kernel",
    "arc_kernels._merge_kernel",
    "arc_finish_kernels._finish_kernel",
    "arc_backward_kernels._scale_pulls_kernel",
    "arc_backward_kernels._backward_kernel",
    "arc_backward_kernels._project_kernel",
    "sum_kernels._sums_kernel",
    "sum_kernels._segments_kernel",
    "sum_kernels._counts_kernel",
    "group_norm_kernels.moments_kernel",
    "group_norm_kernels.merge_moments_kernel",
    "group_norm_kernels.normalize_kernel",
    "group_norm_kernels.gradient_sums_kernel",
    "group_norm_kernels.merge_sums_kernel",
    "group_norm_kernels.gradient_kernel",
    "bias_kernels.add_kernel",
    "bias_kernels.column_sums_kernel",
    "unit_distance_kernels.distances_kernel",
    "unit_distance_kernels.gradient_kernel",
)


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_compile_for_absent_gpu(name: str) -> None:
    """To machine code for compute capability 9.0: the interpreter accepts more than the compiler does."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = pkgutil.resolve_name(f"arcvq.functional.kernels.{name}")
    signature = {}
    for argument in kernel.arg_names:
        if argument in CONSTANTS:
            signature[argument] = "constexpr"
        elif argument in COUNTS or argument.endswith("_count"):
            signature[argument] = "i32"
        else:
            signature[argument] = "fp32" if argument in NUMBERS else POINTERS.get(argument, "*fp32")
    constants = {(i,): CONSTANTS[a] for i, a in enumerate(kernel.arg_names) if a in CONSTANTS}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert len(compiled.asm["cubin"]) > 1000
    assert compiled.metadata.shared < 200_000


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_launches_declare_all_varying_arguments(biased: bool, masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Varying are tensors from the caller, and integers that Triton specialises on; constants come in the signature's order."""
    from arcvq.functional.kernels import (
        arc_backward_kernels,
        arc_finish_kernels,
        arc_kernels,
        row_kernels,
        search_kernels,
    )

    latents, codes, bias, negatives = torch.randn(40, 16), torch.randn(9, 16), torch.rand(9), torch.randn(9)
    valid = torch.ones(40, dtype=torch.bool) if masked else None
    upstream = torch.ones(()) if masked else None
    pulls = arc_finish_kernels.Pulls.empty(9, 3, latents.device)
    outside: list[torch.Tensor] = [latents, codes, bias, negatives, *pulls]
    outside += [x for x in (valid, upstream) if x is not None]
    launched = []

    def check_launch(
        kernel: Any, grid: object, varying: tuple[Any, ...], arguments: tuple[Any, ...], **constants: Any
    ) -> None:
        launched.append(kernel.__name__)
        declared = {id(x) for x in varying}
        names = [p.name for p in kernel.params if p.is_constexpr]
        assert [name for name in constants if name not in ("num_warps", "num_stages")] == names
        assert len(arguments) + len(names) == len(kernel.params)
        for parameter, argument in zip(kernel.params, arguments):
            if isinstance(argument, int):
                assert parameter.do_not_specialize or id(argument) in declared, parameter.name
            elif not isinstance(argument, float):
                assert id(argument) in declared or not any(argument is x for x in outside), parameter.name

    for module in (row_kernels, search_kernels, arc_kernels, arc_backward_kernels):
        monkeypatch.setattr(module, "launch", check_launch)
    search_kernels.assign(latents, codes, bias if biased else None, 0.0)
    z, c = row_kernels.split_rows(latents, codes, 0.0)
    arc_kernels.statistics(z, c, valid, 10, 3, arc_finish_kernels.Margin(0.1, 1e-3, False) if biased else None)
    outside += [
        z.halves,
        z.inverse,
        c.halves,
    ]  # a compiled graph may keep these in other memory until the backward pass
    arc_backward_kernels.backward(latents, z, c, valid, negatives, pulls, upstream, 1.0, 10)
    assert len(set(launched)) == 6
