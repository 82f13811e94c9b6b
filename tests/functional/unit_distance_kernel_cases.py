"""The kernels of unit_distance against float64, run as fused_kernel_cases.py is: in Triton's interpreter, or by hand on a GPU."""

import pytest
import torch

from arcvq import ArcvqError, functional

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Odd sizes, two positions, channels that are no power of two, more positions than a tile has.
SHAPES = [(2, 6, 5, 7), (1, 8, 2, 1), (2, 192, 4, 3), (3, 64, 12, 11), (1, 512, 5, 3)]
ERRORS = {torch.float32: 4e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def random_inputs(shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    """Two images' features, channels-last, zero at some positions; weights, and a gradient."""
    generator = torch.Generator().manual_seed(sum(shape))
    features = [torch.randn(shape, generator=generator).clamp(min=0) for _ in range(2)]
    if shape[2] > 1:
        features[0][0, :, 0, 0] = 0
    features = [each.to(DEVICE, dtype).contiguous(memory_format=torch.channels_last) for each in features]
    weights, grad = (torch.rand(length, generator=generator).to(DEVICE) for length in shape[1::-1])
    return [*features, weights, grad]


def results(inputs: list[torch.Tensor], backend: functional.Backend) -> list[torch.Tensor]:
    """The distances, and the gradients of both images' features."""
    leaves = [each.detach().clone().requires_grad_() for each in inputs[:2]]
    y = functional.unit_distance(*leaves, inputs[2], backend=backend)
    return [y.detach(), *torch.autograd.grad(y, leaves, inputs[3].to(y.dtype))]


@pytest.mark.parametrize("dtype", list(ERRORS))
@pytest.mark.parametrize("shape", SHAPES)
def test_distance_and_gradients_equal_float64(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    inputs = random_inputs(shape, dtype)
    found, expected = results(inputs, "triton"), results([each.double() for each in inputs], "reference")
    assert [each.dtype for each in found] == [torch.float32, dtype, dtype]
    torch.testing.assert_close(found[0].double(), expected[0], rtol=2e-6, atol=0)
    for features, one, other in zip(inputs, found[1:], expected[1:]):
        # Where all features are 0 the gradient is about 10¹⁰, more than float16 has; a ReLU before takes it away.
        usual = features.any(dim=1, keepdim=True).expand_as(features)
        error = ERRORS[dtype] * float(other[usual].abs().max())
        torch.testing.assert_close(one.double()[usual], other[usual], rtol=0, atol=error)


def test_same_inputs_give_same_bits() -> None:
    inputs = random_inputs(SHAPES[3], torch.bfloat16)
    assert all(torch.equal(*pair) for pair in zip(results(inputs, "triton"), results(inputs, "triton")))


def test_only_the_needed_gradient_is_computed() -> None:
    x, y, weights, _ = random_inputs(SHAPES[0], torch.float32)
    distance = functional.unit_distance(x.requires_grad_(), y, weights, backend="triton").sum()
    distance.backward()
    assert x.grad is not None
    assert y.grad is None


def test_second_derivative_is_refused() -> None:
    x, y, weights, _ = random_inputs(SHAPES[0], torch.float32)
    leaf = x.requires_grad_()
    distance = functional.unit_distance(leaf, y, weights, backend="triton").sum()
    (gradient,) = torch.autograd.grad(distance, leaf, create_graph=True)
    with pytest.raises(ArcvqError, match="unit_distance has no second derivative"):
        gradient.sum().backward()
