"""The kernels of add_bias against the plain sum, run as fused_kernel_cases.py is: in Triton's interpreter, or by hand on a GPU."""

import pytest
import torch

from arcvq import functional

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Odd sizes, one row, more channels than a tile has, more rows than a part has.
SHAPES = [(2, 6, 5, 7), (1, 2, 1, 1), (1, 260, 3, 2), (2, 64, 40, 33)]
ERRORS = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def random_inputs(shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    """x, another image and a gradient, channels-last; and a bias."""
    generator = torch.Generator().manual_seed(sum(shape))
    images = [torch.randn(shape, generator=generator) for _ in range(3)]
    images = [each.to(DEVICE, dtype).contiguous(memory_format=torch.channels_last) for each in images]
    return [*images, torch.randn(shape[1], generator=generator).to(DEVICE)]


def results(inputs: list[torch.Tensor], with_other: bool, backend: functional.Backend) -> list[torch.Tensor]:
    """The sum and the gradients of x, bias and the other images."""
    x, other, grad, bias = inputs
    leaves = [each.detach().clone().requires_grad_() for each in (x, bias, *([other] if with_other else []))]
    y = functional.add_bias(*leaves, backend=backend)
    return [y.detach(), *torch.autograd.grad(y, leaves, grad)]


@pytest.mark.parametrize("with_other", [False, True])
@pytest.mark.parametrize("dtype", list(ERRORS))
@pytest.mark.parametrize("shape", SHAPES)
def test_sum_and_gradients_equal_float64(shape: tuple[int, ...], dtype: torch.dtype, with_other: bool) -> None:
    inputs = random_inputs(shape, dtype)
    found = results(inputs, with_other, "triton")
    expected = results([each.double() for each in inputs], with_other, "reference")
    assert [each.dtype for each in found] == [dtype, dtype, torch.float32, dtype][: 3 + with_other]
    for one, other in zip(found, expected):
        error = ERRORS[torch.float32 if one.dim() == 1 else dtype] * float(other.abs().max())
        torch.testing.assert_close(one.double(), other, rtol=0, atol=error)
    assert found[0].is_contiguous(memory_format=torch.channels_last)


def test_same_inputs_give_same_bits() -> None:
    inputs = random_inputs(SHAPES[-1], torch.bfloat16)
    assert all(torch.equal(*pair) for pair in zip(results(inputs, True, "triton"), results(inputs, True, "triton")))


def test_gradient_of_any_layout_is_used() -> None:
    x, other, grad, bias = random_inputs(SHAPES[0], torch.float32)
    expected = results([x, other, grad, bias], True, "triton")
    found = results([x, other, grad.contiguous(), bias], True, "triton")
    assert all(torch.equal(*pair) for pair in zip(found, expected))


def test_second_derivative_is_that_of_the_reference() -> None:
    x, other, _, bias = random_inputs(SHAPES[0], torch.float32)
    found = []
    for backend in ("triton", "reference"):
        leaves = [each.clone().requires_grad_() for each in (x, bias, other)]
        y = functional.add_bias(*leaves, backend=backend).pow(3).sum()
        first = torch.autograd.grad(y, leaves, create_graph=True)
        found.append(torch.autograd.grad(sum(each.square().sum() for each in first), leaves))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("with_other", [False, True])
def test_convolution_with_kernels_is_torchs(with_other: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arcvq.functional.bias.choose_backend", lambda *_: "triton")
    x, other, grad, bias = random_inputs((2, 6, 5, 7), torch.float32)
    weight = torch.randn(6, 6, 3, 3, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    found = []
    for convolve in (functional.conv2d, torch.nn.functional.conv2d):
        leaves = [each.clone().requires_grad_() for each in (x, weight, bias, *([other] if with_other else []))]
        ours = {"other": leaves[3]} if with_other and convolve is functional.conv2d else {}
        y = convolve(*leaves[:3], 1, 1, **ours)
        y = y + leaves[3] if with_other and not ours else y
        found.append([y, *torch.autograd.grad(y, leaves, grad)])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
