"""GroupNorm's reference: against its formula in float64, in every dtype and memory layout, under autocast and compiled."""

from importlib import import_module
from typing import Any

import pytest
import torch
from launch_checks import check_launches

from arcvq import ArcvqError, functional
from arcvq.functional import fused_norm

# Not by an import statement: the package's attribute of this name is the function.
module = import_module("arcvq.functional.group_norm")

ACTIVATIONS = pytest.mark.parametrize("activation", functional.ACTIVATIONS)
LAYOUTS = pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])


def random_inputs(
    dtype: torch.dtype = torch.float32, layout: torch.memory_format = torch.contiguous_format
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x (2, 6, 4, 5), weight and bias."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 6, 4, 5, generator=generator).to(dtype).contiguous(memory_format=layout)
    weight, bias = torch.randn(2, 6, generator=generator)
    return x, weight, bias


def formula(x: torch.Tensor, groups: int, weight: torch.Tensor, bias: torch.Tensor, activation: str) -> torch.Tensor:
    """GroupNorm in float64, written out."""
    x, weight, bias = x.double(), weight.double(), bias.double()
    rows = x.reshape(x.shape[0], groups, -1)
    deviation = rows - rows.mean(2, keepdim=True)
    normal = (deviation / (deviation.square().mean(2, keepdim=True) + 1e-6).sqrt()).view(x.shape)
    y = normal * weight[:, None, None] + bias[:, None, None]
    return y * torch.sigmoid(y) if activation == "silu" else y


@ACTIVATIONS
@LAYOUTS
@pytest.mark.parametrize("groups", [1, 3, 6])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_reference_equals_formula(
    dtype: torch.dtype, groups: int, layout: torch.memory_format, activation: functional.Activation
) -> None:
    x, weight, bias = random_inputs(dtype, layout)
    y = functional.group_norm(x, groups, weight, bias, activation=activation)
    assert y.dtype == dtype
    assert y.is_contiguous(memory_format=layout)
    weight, bias = weight.to(dtype), bias.to(dtype)
    coarse = 4 * torch.finfo(dtype).eps  # two roundings, of values up to four
    torch.testing.assert_close(y.double(), formula(x, groups, weight, bias, activation), rtol=coarse, atol=coarse)


@LAYOUTS
def test_large_mean_costs_reference_no_precision(layout: torch.memory_format) -> None:
    x, weight, bias = random_inputs(layout=layout)
    x = x + 1000
    y = functional.group_norm(x, 3, weight, bias)
    # 2⁻²⁴ of the mean, a few times: torch computes scale·x + shift.
    torch.testing.assert_close(y.double(), formula(x, 3, weight, bias, "none"), rtol=0, atol=5e-4)


@ACTIVATIONS
@LAYOUTS
def test_reference_has_first_and_second_derivative(
    layout: torch.memory_format, activation: functional.Activation
) -> None:
    leaves = [each.double().requires_grad_() for each in random_inputs(layout=layout)]
    leaves[0] = leaves[0].detach()[:1, :, :2, :2].contiguous(memory_format=layout).requires_grad_()

    def function(*inputs: torch.Tensor) -> torch.Tensor:
        return functional.group_norm(inputs[0], 3, *inputs[1:], activation=activation, backend="reference")

    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves)


@LAYOUTS
def test_offset_is_added_first(layout: torch.memory_format) -> None:
    x, weight, bias = random_inputs(layout=layout)
    offset = torch.randn(6)
    expected = functional.group_norm(x + offset[:, None, None], 3, weight, bias)
    assert torch.equal(functional.group_norm(x, 3, weight, bias, offset=offset), expected)


@LAYOUTS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_changes_nothing(dtype: torch.dtype, layout: torch.memory_format) -> None:
    x, weight, bias = random_inputs(dtype, layout)
    expected = functional.group_norm(x, 3, weight, bias, activation="silu")
    with torch.autocast("cpu", torch.bfloat16):
        y = functional.group_norm(x, 3, weight, bias, activation="silu")
    assert y.dtype == dtype
    assert torch.equal(y, expected)


@LAYOUTS
def test_compiled_function_equals_eager(layout: torch.memory_format) -> None:
    leaves = [each.requires_grad_() for each in random_inputs(layout=layout)]

    def function(*inputs: torch.Tensor) -> torch.Tensor:
        return functional.group_norm(inputs[0], 3, *inputs[1:], activation="silu")

    found = []
    for each in (function, torch.compile(function, backend="aot_eager", fullgraph=True)):
        y = each(*leaves)
        assert y.is_contiguous(memory_format=layout)
        found.append([y.detach(), *torch.autograd.grad(y.square().sum(), leaves)])
    torch.testing.assert_close(found[1], found[0])


def test_kernels_take_channels_last_inputs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[int, ...]] = []
    monkeypatch.setattr(module, "choose_backend", lambda *_: "triton")
    monkeypatch.setattr(fused_norm, "group_norm", lambda x, *_: used.append(tuple(x.shape)) or x)
    x, weight, bias = random_inputs(layout=torch.channels_last)
    for each in (x, x.contiguous(), x[:0], x[:, :, :1, :1].contiguous(), x[:, :, 1:]):
        assert functional.group_norm(each, 3, weight, bias).shape == each.shape
    assert used == [(2, 6, 4, 5), (2, 6, 3, 5)]


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"activation": "relu"}, "none, silu"),
        ({"backend": "cuda"}, "auto, reference"),
        ({"groups": 4}, "6 channels cannot be divided into 4 groups"),
        ({"groups": 0}, "into 0 groups"),
        ({"x": torch.zeros(2, 6)}, r"\(B, C, H, W\)"),
        ({"x": torch.zeros(2, 6, 4, 5, dtype=torch.int64)}, "floating-point"),
        ({"bias": torch.zeros(5)}, r"shape \(6,\)"),
        ({"offset": torch.zeros(1)}, r"shape \(6,\)"),
    ],
)
def test_wrong_argument_raises(changes: dict[str, Any], fact: str) -> None:
    x, weight, bias = random_inputs()
    with pytest.raises(ArcvqError, match=fact):
        functional.group_norm(**({"x": x, "groups": 3, "weight": weight, "bias": bias} | changes))


@ACTIVATIONS
@pytest.mark.parametrize("offset", [False, True])
def test_launches_declare_all_varying_arguments(
    offset: bool, activation: functional.Activation, monkeypatch: pytest.MonkeyPatch
) -> None:
    from arcvq.functional.kernels import group_norm_launches

    x, weight, bias = outside = list(random_inputs(layout=torch.channels_last))
    launched = check_launches(monkeypatch, group_norm_launches, outside)
    shift = torch.ones(6) if offset else None
    outside += [shift] if shift is not None else []
    y, mean, inverse = group_norm_launches.forward(x, 3, weight, bias, 1e-6, activation == "silu", shift)
    outside += [y, mean, inverse]  # a compiled graph may keep these in other memory until the backward pass
    group_norm_launches.backward(y, x, weight, bias, mean, inverse, activation == "silu", shift)
    assert len(set(launched)) == 6
