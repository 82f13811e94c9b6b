"""The Triton kernels, in Triton's interpreter: it must be switched on before Triton is imported, hence a process of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from arcvq import ArcvqError, functional

CASES = Path(__file__).with_name("fused_kernel_cases.py")


def test_the_kernels_equal_the_reference_in_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(CASES)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout[-4000:]
    passed = re.search(r"(\d+) passed", finished.stdout)
    assert passed is not None, finished.stdout[-2000:]
    assert int(passed[1]) >= 68


@pytest.mark.parametrize(("dtype", "reason"), [(torch.float32, "needs CUDA tensors"), (torch.float64, "in float32")])
def test_where_the_kernels_do_not_run_one_line_says_so(
    dtype: torch.dtype, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ArcvqError, match=reason):
        functional.assign(torch.zeros(3, 2, dtype=dtype), torch.zeros(4, 2, dtype=dtype), backend="triton")


FLOATS, WHOLE = "*fp32", "*i64"
SIGNATURES = {
    "_assign_kernel": {"queries": FLOATS, "keys": FLOATS, "bias": FLOATS, "tokens": WHOLE},
    "_statistics_kernel": {
        "latents": FLOATS,
        "codes": FLOATS,
        "valid": "*i1",
        "top_cosines": FLOATS,
        "top_tokens": WHOLE,
        "negatives": FLOATS,
    },
    "_backward_kernel": {
        "latents": FLOATS,
        "codes": FLOATS,
        "valid": "*i1",
        "top_tokens": WHOLE,
        "negatives": FLOATS,
        "grad_top": FLOATS,
        "grad_negatives": FLOATS,
        "grad_latents": FLOATS,
    },
}
CONSTANTS = {
    "BIASED": True,
    "MASKED": True,
    "TOP": 3,
    "SLOTS": 4,
    "QUERIES": 64,
    "KEYS": 64,
    "CODES": 64,
    "TOKENS": 64,
    "DEPTH": 16,
    "OUT": 16,
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_kernels_compile_for_a_gpu_that_is_not_here(name: str) -> None:
    """To machine code for compute capability 9.0: the interpreter accepts more than the compiler does."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from arcvq.functional import kernels

    kernel = getattr(kernels, name)
    signature = {}
    for argument in kernel.arg_names:
        kind = "constexpr" if argument in CONSTANTS else "fp32" if argument == "scale" else "i32"
        signature[argument] = SIGNATURES[name].get(argument, kind)
    constants = {(i,): CONSTANTS[a] for i, a in enumerate(kernel.arg_names) if a in CONSTANTS}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert len(compiled.asm["cubin"]) > 1000
    assert compiled.metadata.shared < 200_000
