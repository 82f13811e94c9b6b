"""Doubling the sides: every way of it gives the same pixels, gradients and layout."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from arcvq.nets import resampling

LAYOUTS = pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])


@LAYOUTS
@pytest.mark.parametrize("double", [resampling.Upsample2x(), resampling._repeat, resampling._repeat_channels_last])
def test_pixels_and_gradient_are_those_of_interpolate(
    double: Callable[[torch.Tensor], torch.Tensor], layout: torch.memory_format
) -> None:
    x = torch.randn(2, 6, 3, 5).contiguous(memory_format=layout)
    leaves = [x.clone().requires_grad_() for _ in range(2)]
    expected = F.interpolate(leaves[0], scale_factor=2.0, mode="nearest")
    y = double(leaves[1])
    assert torch.equal(y, expected)
    grad = torch.randn_like(expected)
    torch.testing.assert_close(*(torch.autograd.grad(*pair, grad)[0] for pair in zip((expected, y), leaves)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_keeps_dtype_and_layout(dtype: torch.dtype) -> None:
    x = torch.randn(1, 4, 3, 3, dtype=dtype).contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        y = resampling.Upsample2x()(x)
    assert y.dtype == dtype
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert resampling._repeat_channels_last(x).is_contiguous(memory_format=torch.channels_last)
