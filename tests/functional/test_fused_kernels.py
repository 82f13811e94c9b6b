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
