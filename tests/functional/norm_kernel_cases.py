"""GroupNorm's kernels against float64, run as fused_kernel_cases.py is: in Triton's interpreter, or by hand on a GPU."""

from typing import Any

import pytest
import torch
from torch.library import opcheck

from arcvq import ArcvqError, functional
from arcvq.functional.kernels import group_norm_launches

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

OFFSETS = pytest.mark.parametrize("offset", [False, True], ids=["plain", "offset"])
ACTIVATIONS = pytest.mark.parametrize("activation", ["none", "silu"])
# shape, groups: odd sizes, one image, one group, a group a channel, more channels than a tile has, more positions than a tile has
SHAPES = [
    ((2, 6, 5, 7), 3),
    ((1, 8, 27, 23), 1),
    ((2, 12, 3, 4), 12),
    ((1, 260, 3, 1), 13),
    ((3, 2, 2, 1), 1),
    ((1, 64, 9, 15), 4),
]
HALVES = (torch.bfloat16, torch.float16)
CASES = [*((*each, torch.float32) for each in SHAPES), *((*SHAPES[0], dtype) for dtype in HALVES)]
# What float32 and the rounding of a result may cost; the interpreter rounds to bfloat16 by cutting.
ERRORS = {torch.float32: 4e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def random_inputs(
    shape: tuple[int, ...], dtype: torch.dtype = torch.float32, offset: bool = False
) -> tuple[torch.Tensor, ...]:
    """x and a gradient, channels-last, weight and bias; and an offset."""
    generator = torch.Generator().manual_seed(sum(shape))
    x, grad = (torch.randn(shape, generator=generator).to(DEVICE) for _ in range(2))
    parameters = [torch.randn(shape[1], generator=generator).to(DEVICE) for _ in range(3)]
    x, grad = (each.to(dtype).contiguous(memory_format=torch.channels_last) for each in (x, grad))
    return (x, grad, *parameters[: 2 + offset])


def results(inputs: tuple[torch.Tensor, ...], groups: int, **options: Any) -> list[torch.Tensor]:
    """The result and the gradients of x, weight and bias, and of an offset."""
    x, grad, *parameters = inputs
    leaves = [each.detach().clone().requires_grad_() for each in (x, *parameters)]
    y = functional.group_norm(leaves[0], groups, *leaves[1:3], offset=leaves[3] if len(leaves) > 3 else None, **options)
    return [y.detach(), *torch.autograd.grad(y, leaves, grad)]


def exact_results(inputs: tuple[torch.Tensor, ...], groups: int, **options: Any) -> list[torch.Tensor]:
    """The same in float64, by the reference."""
    return results(tuple(each.double() for each in inputs), groups, **options, backend="reference")


def assert_close(found: list[torch.Tensor], expected: list[torch.Tensor], *errors: float) -> None:
    """Compare with these errors relative to the largest element, of the images and of the parameters' gradients; the offset's is a sum
    of x's, which may be 0."""
    scales = [float(each.abs().max()) for each in expected[:4]] + [float(expected[1].abs().sum((0, 2, 3)).max())]
    for one, other, scale, error in zip(found, expected, scales, (errors[0], errors[0], *[errors[-1]] * 3)):
        torch.testing.assert_close(one.double(), other, rtol=0, atol=error * scale)


@ACTIVATIONS
@OFFSETS
@pytest.mark.parametrize(("shape", "groups", "dtype"), CASES)
def test_result_and_gradients_equal_float64(
    shape: tuple[int, ...], groups: int, dtype: torch.dtype, offset: bool, activation: str
) -> None:
    inputs = random_inputs(shape, dtype, offset)
    found = results(inputs, groups, activation=activation, backend="triton")
    assert [each.dtype for each in found] == [dtype, dtype, *[torch.float32] * (2 + offset)]
    assert all(each.is_contiguous(memory_format=torch.channels_last) for each in found[:2])
    assert_close(found, exact_results(inputs, groups, activation=activation), ERRORS[dtype], 4e-6)


@ACTIVATIONS
@pytest.mark.parametrize("splits", [1, 2, 5])
def test_large_mean_costs_no_precision(splits: int, activation: str) -> None:
    """An error of 2⁻²⁴ in a mean of 1,000 is 6e-5 of a standard deviation of one."""
    x, grad, weight, bias = random_inputs((2, 6, 40, 31))
    inputs = (x + 1000, grad, weight, bias)
    expected = exact_results(inputs, 3, activation=activation)
    silu = activation == "silu"
    y, mean, inverse = group_norm_launches.forward(inputs[0], 3, weight, bias, 1e-6, silu, splits=splits)
    gradients = group_norm_launches.backward(grad, inputs[0], weight, bias, mean, inverse, silu, splits=splits)
    assert_close([y, *gradients[:3]], expected, 1e-4, 2e-4)
    variance, exact = torch.var_mean(inputs[0].double().reshape(2, 3, -1), dim=-1, correction=0)
    torch.testing.assert_close(mean.double(), exact, rtol=2**-23, atol=0)
    torch.testing.assert_close(inverse.double(), (variance + 1e-6).rsqrt(), rtol=1e-6, atol=0)


def test_first_value_far_from_others_costs_no_precision() -> None:
    x, grad, weight, bias = random_inputs((1, 4, 20, 20))
    x[0, :, 0, 0] = 3000.0
    inputs = (x, grad, weight, bias)
    assert_close(results(inputs, 2, backend="triton"), exact_results(inputs, 2), 4e-6)


@ACTIVATIONS
def test_constant_input_gives_activated_bias(activation: str) -> None:
    x, grad, weight, bias = random_inputs((2, 6, 4, 5))
    inputs = (torch.full_like(x, 7.25), grad, weight, bias)
    found = results(inputs, 3, activation=activation, backend="triton")
    expected = bias if activation == "none" else torch.nn.functional.silu(bias)
    torch.testing.assert_close(found[0], expected[None, :, None, None].expand_as(x))
    exact = exact_results(inputs, 3, activation=activation)
    torch.testing.assert_close([each.double() for each in found], exact, rtol=1e-5, atol=1e-4)


def test_large_results_of_silu_stay_finite() -> None:
    x, grad, weight, bias = random_inputs((1, 6, 4, 5))
    inputs = (x, grad, 1e3 * weight, bias)
    found = results(inputs, 3, activation="silu", backend="triton")
    assert_close(found, exact_results(inputs, 3, activation="silu"), 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_equal_reference(dtype: torch.dtype) -> None:
    inputs = random_inputs((2, 64, 5, 6), dtype)
    expected = [each.double() for each in results(inputs, 32, activation="silu", backend="reference")]
    coarse = 4 * ERRORS[dtype]  # the reference rounds normalised values and weights, too
    assert_close(results(inputs, 32, activation="silu", backend="triton"), expected, coarse, coarse)


def test_norm_adds_the_bias_of_the_convolution_before() -> None:
    x, _, weight, bias, offset = random_inputs((2, 6, 5, 7), offset=True)
    kernel = torch.randn(6, 6, 1, 1, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    with torch.backends.cudnn.flags(allow_tf32=False):
        expected, bare = (torch.nn.functional.conv2d(x, kernel, each) for each in (offset, None))
    found = functional.group_norm(bare, 3, weight, bias, offset=offset, backend="triton")
    torch.testing.assert_close(found, functional.group_norm(expected, 3, weight, bias, backend="reference"))


def test_nan_stays_in_its_group() -> None:
    x, _, weight, bias = random_inputs((2, 6, 5, 7))
    x[1, 2, 3, 3] = float("nan")
    y = functional.group_norm(x, 3, weight, bias, backend="triton")
    assert y[1, 2:4].isnan().all()
    assert y.isnan().sum() == y[1, 2:4].numel()


def test_gradient_of_any_layout_is_used() -> None:
    x, grad, weight, bias = random_inputs((2, 6, 5, 7))
    expected = results((x, grad, weight, bias), 3, activation="silu", backend="triton")
    found = results((x, grad.contiguous(), weight, bias), 3, activation="silu", backend="triton")
    assert all(torch.equal(*pair) for pair in zip(found, expected))
    ones = torch.ones((), device=DEVICE).expand_as(x)  # as the gradient of a sum
    same = results((x, ones, weight, bias), 3, backend="triton")
    assert_close(same, exact_results((x, ones.contiguous(), weight, bias), 3), 4e-6)


def test_slice_of_channels_equals_its_copy() -> None:
    x, _, weight, bias = random_inputs((2, 12, 5, 7))
    half = x[:, 6:]
    y = functional.group_norm(half, 3, weight[:6], bias[:6], backend="triton")
    assert y.is_contiguous(memory_format=torch.channels_last)
    copy = half.contiguous(memory_format=torch.channels_last)
    assert torch.equal(y, functional.group_norm(copy, 3, weight[:6], bias[:6], backend="triton"))


def test_contiguous_input_falls_to_reference() -> None:
    x, grad, weight, bias = random_inputs((2, 6, 5, 7))
    inputs = (x.contiguous(), grad, weight, bias)
    found, expected = (results(inputs, 3, activation="silu", backend=b) for b in ("triton", "reference"))
    assert found[0].is_contiguous()
    assert all(torch.equal(*pair) for pair in zip(found, expected))


def test_parameters_of_half_precision_get_gradients_in_it() -> None:
    inputs = tuple(each.bfloat16() for each in random_inputs((2, 6, 5, 7), offset=True))
    inputs = tuple(each.contiguous(memory_format=torch.channels_last) if each.dim() == 4 else each for each in inputs)
    found = results(inputs, 3, activation="silu", backend="triton")
    assert {each.dtype for each in found} == {torch.bfloat16}
    assert_close(found, exact_results(inputs, 3, activation="silu"), 8e-3)


@OFFSETS
def test_same_inputs_give_same_bits(offset: bool) -> None:
    inputs = random_inputs((2, 8, 30, 20), torch.bfloat16, offset)
    first, second = (results(inputs, 4, activation="silu", backend="triton") for _ in range(2))
    assert all(torch.equal(*pair) for pair in zip(first, second))


def test_forward_saves_input_and_statistics_only() -> None:
    x, _, weight, bias = random_inputs((2, 6, 5, 7))
    x.requires_grad_()
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: saved.append(each) or each, lambda each: each):
        functional.group_norm(x, 3, weight, bias, activation="silu", backend="triton")
    assert [each.data_ptr() for each in saved if each.shape == x.shape] == [x.data_ptr()]
    assert sorted(each.numel() for each in saved if each.shape != x.shape) == [6, 6, 6, 6]


def test_second_derivative_is_refused() -> None:
    x, _, weight, bias = random_inputs((2, 6, 5, 7))
    leaf = x.requires_grad_()
    y = functional.group_norm(leaf, 3, weight, bias, backend="triton")
    (gradient,) = torch.autograd.grad(y.square().sum(), leaf, create_graph=True)
    with pytest.raises(ArcvqError, match="GroupNorm has no second derivative"):
        gradient.sum().backward()


@OFFSETS
@pytest.mark.parametrize("silu", [False, True])
def test_operators_pass_opcheck(silu: bool, offset: bool) -> None:
    x, grad, weight, bias, *rest = random_inputs((2, 6, 3, 2), offset=offset)
    leaves = [each.clone().requires_grad_() for each in (x, weight, bias, *rest)]
    operators = torch.ops.arcvq
    opcheck(operators.fused_group_norm.default, (leaves[0], 3, *leaves[1:3], 1e-6, silu, leaves[3] if offset else None))
    shift = rest[0] if offset else None
    _, mean, inverse = operators.fused_group_norm(x, 3, weight, bias, 1e-6, silu, shift)
    opcheck(operators.fused_group_norm_backward.default, (grad, x, weight, bias, mean, inverse, silu, shift))


@OFFSETS
def test_compiled_function_equals_eager(offset: bool) -> None:
    inputs = random_inputs((2, 6, 5, 7), offset=offset)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def compiled(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *offset: torch.Tensor) -> torch.Tensor:
        shift = offset[0] if offset else None
        return functional.group_norm(x, 3, weight, bias, activation="silu", offset=shift, backend="triton")

    leaves = [each.clone().requires_grad_() for each in (inputs[0], *inputs[2:])]
    y = compiled(*leaves)
    found = [y.detach(), *torch.autograd.grad(y, leaves, inputs[1])]
    expected = results(inputs, 3, activation="silu", backend="triton")
    assert all(torch.equal(*pair) for pair in zip(found, expected))
    assert y.stride() == expected[0].stride()


def test_step_is_captured_as_graph() -> None:
    if DEVICE == "cpu":
        pytest.skip("a CUDA graph needs a GPU")
    inputs = random_inputs((2, 64, 16, 16), torch.bfloat16)
    expected = results(inputs, 32, activation="silu", backend="triton")  # compiles the kernels, too
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = results(inputs, 32, activation="silu", backend="triton")
    graph.replay()
    assert all(torch.equal(*pair) for pair in zip(found, expected))
