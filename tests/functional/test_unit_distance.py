"""unit_distance by its reference, its errors, and the launches of its kernels; unit_distance_kernel_cases.py has the kernels."""

from typing import Any

import pytest
import torch
from launch_checks import check_launches

from arcvq import ArcvqError, functional
from arcvq.functional import feature_distance as module


def test_distance_of_known_directions() -> None:
    """Two positions of two channels: at the first the directions are equal, at the second at a right angle."""
    x = torch.tensor([[[[2.0, 3.0]], [[0.0, 0.0]]]])
    y = torch.tensor([[[[5.0, 0.0]], [[0.0, 7.0]]]])
    weights = torch.tensor([1.0, 4.0])
    torch.testing.assert_close(functional.unit_distance(x, y, weights), torch.tensor([(0 + 1 + 4) / 2]))


def test_gradient_of_reference() -> None:
    torch.manual_seed(0)
    x, y = (torch.randn(2, 3, 2, 2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    weights = torch.rand(3, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda *pair: functional.unit_distance(*pair, weights), (x, y))


@pytest.mark.parametrize("change", [{"x": (2, 3)}, {"y": (2, 3, 4, 4)}, {"weights": (4,)}])
def test_wrong_shape_raises(change: dict[str, Any]) -> None:
    shapes = {"x": (2, 3, 4, 5), "y": (2, 3, 4, 5), "weights": (3,)} | change
    with pytest.raises(ArcvqError, match=r"weights \(C,\)"):
        functional.unit_distance(**{name: torch.zeros(shape) for name, shape in shapes.items()})


def test_launches_declare_all_varying_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    from arcvq.functional.kernels import unit_distance_kernels

    inputs = [torch.zeros(2), torch.zeros(2, 6, 4, 5), torch.ones(2, 6, 4, 5), torch.zeros(6)]
    launched = check_launches(monkeypatch, unit_distance_kernels, inputs)
    unit_distance_kernels.distances(*inputs[1:], 1e-10)
    unit_distance_kernels.gradient(*inputs, 1e-10)
    assert launched == ["distances_kernel", "gradient_kernel"]


def test_kernels_take_channels_last_inputs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "choose_backend", lambda *_: "triton")
    x, weights = torch.zeros(2, 6, 4, 5), torch.zeros(6)
    last = x.contiguous(memory_format=torch.channels_last)
    assert module._uses_kernels(last, last, weights, "auto")
    assert not module._uses_kernels(x, last, weights, "auto")
    assert not module._uses_kernels(last, last, weights.requires_grad_(), "auto")
