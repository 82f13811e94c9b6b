"""add_bias by its reference, its errors, and the launches of its kernels; bias_kernel_cases.py has the kernels."""

import pytest
import torch
from launch_checks import check_launches
from torch import nn

from arcvq import ArcvqError, functional
from arcvq.functional import bias as module
from arcvq.nets.convolutions import FeatureConv2d

LAYOUTS = pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])


@LAYOUTS
def test_sum_is_that_of_broadcasting(layout: torch.memory_format) -> None:
    x, other = (torch.randn(2, 6, 4, 5).contiguous(memory_format=layout) for _ in range(2))
    bias = torch.randn(6)
    assert torch.equal(functional.add_bias(x, bias), x + bias[:, None, None])
    assert torch.equal(functional.add_bias(x, bias, other), x + bias[:, None, None] + other)


@pytest.mark.parametrize(
    ("shapes", "fact"),
    [
        (((2, 6), (6,)), r"bias \(C,\)"),
        (((2, 6, 4, 5), (5,)), r"bias \(C,\)"),
        (((2, 6, 4, 5), (6,), (2, 6, 1, 1)), r"of shape \(2, 6, 4, 5\)"),
    ],
)
def test_wrong_shape_raises(shapes: tuple[tuple[int, ...], ...], fact: str) -> None:
    with pytest.raises(ArcvqError, match=fact):
        functional.add_bias(*(torch.zeros(shape) for shape in shapes))


def test_convolution_adds_only_what_has_its_shape() -> None:
    x, weight = torch.zeros(1, 3, 4, 4), torch.zeros(2, 3, 3, 3)
    assert functional.conv2d(x, weight, None, 2).shape == (1, 2, 1, 1)  # the positions are torch's
    with pytest.raises(ArcvqError, match=r"of shape \(1, 2, 2, 2\)"):
        functional.conv2d(x, weight, other=torch.zeros(1, 2, 1, 1))
    with torch.autocast("cpu", torch.bfloat16):
        assert functional.conv2d(x, weight, other=torch.zeros(1, 2, 2, 2)).dtype == torch.bfloat16


def test_feature_convolution_is_torchs() -> None:
    torch.manual_seed(0)
    ours, theirs = FeatureConv2d(3, 4, 3, stride=2, padding=1), nn.Conv2d(3, 4, 3, stride=2, padding=1)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, 8, 9)
    assert torch.equal(ours(x), theirs(x))
    assert torch.equal(ours(x, theirs(x)), 2 * theirs(x))
    assert ours.bias is not None
    torch.testing.assert_close(ours(x, with_bias=False) + ours.bias[:, None, None], theirs(x))


@pytest.mark.parametrize("with_other", [False, True])
def test_launches_declare_all_varying_arguments(with_other: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from arcvq.functional.kernels import bias_kernels

    x, other, bias = torch.zeros(2, 6, 4, 5), torch.ones(2, 6, 4, 5), torch.zeros(6)
    launched = check_launches(monkeypatch, bias_kernels, [x, other, bias])
    bias_kernels.add(x, bias, other if with_other else None)
    bias_kernels.column_sums(x)
    assert launched == ["add_kernel", "column_sums_kernel"]


def test_kernels_take_channels_last_inputs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "choose_backend", lambda *_: "triton")
    x = torch.zeros(2, 6, 4, 5)
    assert not module.uses_kernels(x)
    assert module.uses_kernels(x.contiguous(memory_format=torch.channels_last))
    assert not module.uses_kernels(x[:0].contiguous(memory_format=torch.channels_last))
