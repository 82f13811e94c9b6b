"""Autocast and the matmul-precision switch must not change a token or a loss."""

from collections.abc import Iterator

import pytest
import torch

from arcvq.functional import arc_loss, assign, entropy_loss, entropy_statistics, sign_entropy_statistics, vq_loss
from arcvq.functional.precision import ieee_matmul, matmul, products_are_float32

BACKENDS = ("reference", "chunked")


@pytest.fixture
def medium_precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision(before)


def all_results(latents: torch.Tensor, codebook: torch.Tensor, backend: str) -> dict[str, torch.Tensor]:
    """Every result and every gradient that depends on a product of latents and codes."""
    z, e = latents.clone().requires_grad_(), codebook.clone().requires_grad_()
    results = {"cosine": assign(z, e, "cosine", backend), "euclidean": assign(z, e, "euclidean", backend)}
    arc = arc_loss(z, e, backend=backend, stop_gradient=False)
    entropy = entropy_loss(*entropy_statistics(z, e, 0.5, backend=backend), latents.shape[0])
    signs = entropy_loss(*sign_entropy_statistics(z[:, :12], 0.5), latents.shape[0])
    terms = vq_loss(z, e[results["cosine"]])
    (arc + entropy + signs + terms["codebook"] + terms["commitment"]).backward()
    losses = {"arc": arc, "entropy": entropy, "signs": signs, **terms}
    return {**results, **losses, "latents.grad": z.grad, "codebook.grad": e.grad}


def assert_same_bits(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_changes_no_bit(dtype: torch.dtype, backend: str) -> None:
    latents, codebook = torch.randn(200, 32), torch.randn(50, 32)
    outside = all_results(latents, codebook, backend)
    with torch.autocast("cpu", dtype):
        inside = all_results(latents, codebook, backend)
    assert_same_bits(outside, inside)


@pytest.mark.parametrize("backend", BACKENDS)
def test_matmul_precision_switch_changes_no_bit_and_is_restored(backend: str) -> None:
    latents, codebook = torch.randn(500, 64), torch.randn(128, 64)
    before = torch.get_float32_matmul_precision()
    outside = all_results(latents, codebook, backend)
    assert torch.get_float32_matmul_precision() == before
    torch.set_float32_matmul_precision("medium")
    try:
        switched = torch.backends.mkldnn.matmul.fp32_precision
        inside = all_results(latents, codebook, backend)
        assert torch.get_float32_matmul_precision() == "medium"
        assert torch.backends.mkldnn.matmul.fp32_precision == switched
    finally:
        torch.set_float32_matmul_precision(before)
    assert_same_bits(outside, inside)


@pytest.mark.usefixtures("medium_precision")
def test_ieee_matmul_restores_switch_after_error() -> None:
    before = torch.backends.mkldnn.matmul.fp32_precision
    assert before != "ieee"

    def fail_inside() -> None:
        with ieee_matmul(torch.zeros(())):
            assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"
            assert torch.backends.cuda.matmul.fp32_precision == "ieee"
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fail_inside()
    assert torch.backends.mkldnn.matmul.fp32_precision == before


@pytest.mark.usefixtures("medium_precision")
def test_matmul_and_gradient_match_float64() -> None:
    a, b = torch.randn(64, 256, requires_grad=True), torch.randn(256, 48, requires_grad=True)
    product = matmul(a, b)
    product.square().sum().backward()
    exact_a, exact_b = a.detach().double().requires_grad_(), b.detach().double().requires_grad_()
    exact = exact_a @ exact_b
    exact.square().sum().backward()
    for value, expected in ((product, exact), (a.grad, exact_a.grad), (b.grad, exact_b.grad)):
        assert (value.double() - expected).abs().max() < 2e-6 * expected.abs().max()


def test_matmul_gradient_agrees_with_finite_differences() -> None:
    a = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    b = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(matmul, (a, b))
    assert torch.autograd.gradgradcheck(matmul, (a, b))


def test_compiled_function_sees_changed_matmul_precision() -> None:
    @torch.compile(backend="eager", fullgraph=True)
    def add_if_float32(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if products_are_float32() else x

    before = torch.get_float32_matmul_precision()
    answers = []
    try:
        for precision in ("highest", "high", "highest"):
            torch.set_float32_matmul_precision(precision)
            answers.append(int(add_if_float32(torch.zeros(()))))
    finally:
        torch.set_float32_matmul_precision(before)
    assert answers == [1, 0, 1]
