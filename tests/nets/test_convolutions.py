"""The matrix products against PyTorch's convolutions, whose place they take on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from arcvq.nets import convolutions

CASES = {
    "window": (convolutions.WindowConv2d(3, 8), convolutions.window_conv, (3, 3, 12, 20)),
    "window, grey": (convolutions.WindowConv2d(1, 8), convolutions.window_conv, (5, 1, 28, 28)),
    "window, smallest": (convolutions.WindowConv2d(3, 8), convolutions.window_conv, (2, 3, 2, 2)),
    "transposed": (convolutions.WindowConvTranspose2d(8, 3), convolutions.window_conv_transpose, (3, 8, 5, 7)),
    "transposed, smallest": (
        convolutions.WindowConvTranspose2d(8, 1),
        convolutions.window_conv_transpose,
        (2, 8, 1, 1),
    ),
    "point": (convolutions.PointConv2d(8, 5), convolutions.point_conv, (3, 8, 4, 6)),
}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("case", CASES)
def test_a_product_and_its_gradients_are_those_of_the_convolution(case: str, layout: torch.memory_format) -> None:
    module, product, shape = CASES[case]
    module.double()
    x = torch.randn(shape, dtype=torch.float64).to(memory_format=layout).requires_grad_()
    want, got = module(x), product(x, module.weight, module.bias)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    assert got.is_contiguous(memory_format=torch.channels_last)
    outer = torch.randn_like(want)
    learns = [x, *module.parameters()]
    for a, b in zip(torch.autograd.grad(got, learns, outer), torch.autograd.grad(want, learns, outer)):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("case", ["window", "transposed", "point"])
def test_an_empty_batch_stays_empty(case: str) -> None:
    module, product, shape = CASES[case]
    x = torch.randn(0, *shape[1:], dtype=module.weight.dtype)
    assert product(x, module.weight, module.bias).shape == module(x).shape


def test_half_precision_adds_windows_in_float32() -> None:
    module, product, shape = CASES["transposed"]
    module.float()
    x = torch.randn(shape)
    with torch.autocast("cpu", torch.bfloat16):
        got = product(x, module.weight, module.bias)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, module(x), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("case", CASES)
def test_a_product_compiles_whole(case: str) -> None:
    module, product, shape = CASES[case]
    module.float()
    torch.compiler.reset()
    x = torch.randn(shape)

    def run(x: Tensor) -> Tensor:
        return product(x, module.weight, module.bias)

    torch.testing.assert_close(
        torch.compile(run, fullgraph=True, backend="aot_eager")(x), module(x), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(
    ("module", "plain"),
    [
        (convolutions.WindowConv2d(3, 8), nn.Conv2d(3, 8, 4, stride=2, padding=1)),
        (convolutions.WindowConvTranspose2d(8, 3), nn.ConvTranspose2d(8, 3, 4, stride=2, padding=1)),
        (convolutions.PointConv2d(8, 5), nn.Conv2d(8, 5, 1)),
    ],
)
def test_the_weights_are_pytorchs_own(module: nn.Module, plain: nn.Module) -> None:
    plain.load_state_dict(module.state_dict(), strict=True)
    x = torch.randn(2, 8 if "Transpose" in type(plain).__name__ or plain.weight.shape[1] == 8 else 3, 8, 8)
    assert torch.equal(module(x), plain(x))


class OnGpu(torch.Tensor):
    is_cuda = True


def test_compiled_for_a_gpu_products_are_used_unless_they_are_tensorfloat32(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    monkeypatch.setattr(convolutions, "window_conv", lambda *_: used.append(precision))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    image = torch.randn(1, 1, 4, 4).as_subclass(OnGpu)
    before = torch.get_float32_matmul_precision()
    try:
        for precision in ("highest", "high"):
            torch.set_float32_matmul_precision(precision)
            convolutions.WindowConv2d(1, 2)(image)
        assert used == ["highest"]
    finally:
        torch.set_float32_matmul_precision(before)
