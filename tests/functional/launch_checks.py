"""What a launch of a kernel must declare, checked in place of launching it."""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest
from torch import Tensor


def check_launches(monkeypatch: pytest.MonkeyPatch, module: ModuleType, outside: Sequence[Tensor]) -> list[str]:
    """Check each launch of the module instead of launching: varying are all tensors from `outside` the launches, and integers that
    Triton specialises on; constants come in the signature's order. Returns the list that the kernels' names are added to."""
    launched: list[str] = []
    monkeypatch.setattr(module, "launch", _checker(outside, launched))
    return launched


def _checker(outside: Sequence[Tensor], launched: list[str]) -> Callable[..., None]:
    def check_launch(
        kernel: Any, grid: object, varying: tuple[Any, ...], arguments: tuple[Any, ...], **constants: Any
    ) -> None:
        launched.append(kernel.__name__)
        names = [p.name for p in kernel.params if p.is_constexpr]
        assert [name for name in constants if name != "num_warps"] == names
        assert len(arguments) + len(names) == len(kernel.params)
        for parameter, argument in zip(kernel.params, arguments):
            is_varying = any(argument is each for each in varying)
            if isinstance(argument, int):
                assert parameter.do_not_specialize or is_varying, parameter.name
            elif isinstance(argument, Tensor):
                assert is_varying or not any(argument is each for each in outside), parameter.name

    return check_launch
