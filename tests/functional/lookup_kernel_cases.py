"""Sums and counts by code against float64, run as fused_kernel_cases.py is: in Triton's interpreter, or by hand on a GPU."""

import pytest
import torch
from torch.library import opcheck

from arcvq import VQ, functional
from arcvq.functional.kernels import sum_kernels
from arcvq.functional.kernels.tilings import MAX_HISTOGRAM_CODES

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# Both ways of summing, whatever the number of codes.
WAYS = pytest.mark.parametrize("one_hot", [True, False], ids=["one-hot", "sorted"])
# tokens, codes, width
SHAPES = [(1, 1, 1), (37, 5, 3), (700, 130, 64), (65, 2, 200), (9, 40, 1024), (130, 1, 16)]


def random_values_and_tokens(count: int, codes: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Values, and tokens with padding among them."""
    generator = torch.Generator().manual_seed(count + codes)
    values = torch.randn(count, width, generator=generator)
    return values.to(DEVICE), torch.randint(-1, codes, (count,), generator=generator).to(DEVICE)


def assert_sums_match(sums: torch.Tensor, values: torch.Tensor, tokens: torch.Tensor) -> None:
    """Check that each sum errs by at most 1e-5 of the sum of its absolute values."""
    assert sums.dtype == torch.float32
    real = tokens >= 0
    values, tokens = values[real].double(), tokens[real]
    expected, size = (
        torch.zeros_like(sums, dtype=torch.float64).index_add(0, tokens, x) for x in (values, values.abs())
    )
    assert bool(((sums - expected).abs() <= 1e-5 * size).all())


@WAYS
@pytest.mark.parametrize("shape", SHAPES)
def test_sums_equal_float64(shape: tuple[int, int, int], one_hot: bool) -> None:
    values, tokens = random_values_and_tokens(*shape)
    assert_sums_match(sum_kernels.token_sums(values, tokens, shape[1], one_hot=one_hot), values, tokens)


@WAYS
@pytest.mark.parametrize("token", [-1, 0, 69])
def test_one_code_or_none_has_all_tokens(token: int, one_hot: bool) -> None:
    values, tokens = random_values_and_tokens(333, 70, 20)
    tokens.fill_(token)
    assert_sums_match(sum_kernels.token_sums(values, tokens, 70, one_hot=one_hot), values, tokens)
    assert functional.token_counts(tokens, 70, "triton").tolist() == [333 * (code == token) for code in range(70)]


@pytest.mark.parametrize("codes", [9, MAX_HISTOGRAM_CODES + 1])
def test_no_tokens_give_zero_sums_and_counts(codes: int) -> None:
    values, tokens = random_values_and_tokens(0, codes, 5)
    assert torch.equal(functional.token_sums(values, tokens, codes, "triton"), torch.zeros(codes, 5, device=DEVICE))
    assert torch.equal(functional.token_counts(tokens, codes, "triton"), tokens.new_zeros(codes))


@pytest.mark.parametrize("tokens_on", [1, 4000])
def test_code_spanning_many_blocks_is_summed(tokens_on: int) -> None:
    """More than 64 blocks of 64, whose partial sums fill more than one block again."""
    values, tokens = random_values_and_tokens(4300, tokens_on, 2)
    assert_sums_match(functional.token_sums(values, tokens, MAX_HISTOGRAM_CODES + 4000, "triton"), values, tokens)


@WAYS
@pytest.mark.parametrize("magnitudes", [(-12, -12), (-12, 3), (-30, 30)])
def test_values_of_any_magnitude_are_summed(magnitudes: tuple[int, int], one_hot: bool) -> None:
    values, tokens = random_values_and_tokens(300, 40, 8)
    values *= torch.logspace(*magnitudes, 300, device=DEVICE)[torch.randperm(300)][:, None]
    assert_sums_match(sum_kernels.token_sums(values, tokens, 40, one_hot=one_hot), values, tokens)


@WAYS
def test_sum_of_single_value_keeps_its_bits(one_hot: bool) -> None:
    values, _ = random_values_and_tokens(100, 1, 8)
    tokens = torch.randperm(100, device=DEVICE)
    sums = sum_kernels.token_sums(values, tokens, 100, one_hot=one_hot)
    torch.testing.assert_close(sums[tokens], values, rtol=2**-23, atol=0)


@WAYS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_values_are_summed_in_float32(dtype: torch.dtype, one_hot: bool) -> None:
    values, tokens = random_values_and_tokens(200, 7, 12)
    values = values.to(dtype)
    assert_sums_match(sum_kernels.token_sums(values, tokens, 7, one_hot=one_hot), values, tokens)


@WAYS
def test_nan_at_padding_does_not_reach_sums(one_hot: bool) -> None:
    values, tokens = random_values_and_tokens(100, 7, 12)
    values[tokens < 0] = float("nan")
    assert_sums_match(sum_kernels.token_sums(values, tokens, 7, one_hot=one_hot), values, tokens)


@WAYS
def test_token_beyond_codebook_is_not_counted(one_hot: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    values, tokens = random_values_and_tokens(200, 9, 4)
    room = torch.zeros(40, 4, device=DEVICE)
    monkeypatch.setattr(torch, "zeros", lambda codes, *_, **__: room[:codes])  # shows writes beyond the sums
    sums = sum_kernels.token_sums(values, torch.where(tokens > 5, tokens + 20, tokens), 6, one_hot=one_hot)
    monkeypatch.undo()
    assert_sums_match(sums, values, torch.where(tokens > 5, -1, tokens))
    assert not room[6:].any()
    counts = functional.token_counts(tokens, 6, "triton")
    assert torch.equal(counts, functional.token_counts(tokens, 9, "triton")[:6])


def test_sums_do_not_depend_on_token_splits() -> None:
    values, tokens = random_values_and_tokens(600, 150, 8)
    whole, parts = (sum_kernels.token_sums(values, tokens, 150, splits=splits) for splits in (1, 7))
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("count", "codes"), [(1, 1), (37, 5), (1500, 33), (600, MAX_HISTOGRAM_CODES), (600, MAX_HISTOGRAM_CODES + 1)]
)
def test_counts_equal_reference(count: int, codes: int) -> None:
    _, tokens = random_values_and_tokens(2 * count, codes, 1)
    for some in (tokens[::2], tokens.view(2, count)):
        expected = functional.token_counts(some, codes, "reference")
        assert torch.equal(functional.token_counts(some, codes, "triton"), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lookup_and_gradient_match_embedding(dtype: torch.dtype) -> None:
    values, tokens = random_values_and_tokens(60, 9, 5)
    tokens = tokens.clamp(min=0).view(6, 10)
    upstream = values.view(6, 10, 5).to(dtype)
    found = []
    for backend in ("reference", "triton"):
        codebook = torch.linspace(-1, 1, 45, device=DEVICE).view(9, 5).to(dtype).requires_grad_()
        codes = functional.lookup(codebook, tokens, backend)
        (gradient,) = torch.autograd.grad(codes, codebook, upstream)
        assert gradient.dtype == dtype
        found.append((codes.detach(), gradient))
    assert torch.equal(found[0][0], found[1][0])
    coarse = torch.finfo(dtype).eps
    torch.testing.assert_close(found[1][1], found[0][1], rtol=20 * coarse, atol=20 * coarse)


def test_lookup_has_second_derivative() -> None:
    values, tokens = random_values_and_tokens(60, 9, 5)
    found = []
    for backend in ("reference", "triton"):
        codebook = values[:9].clone().requires_grad_()
        codes = functional.lookup(codebook, tokens.clamp(min=0), backend)
        (gradient,) = torch.autograd.grad(codes.pow(3).sum(), codebook, create_graph=True)
        found.append(torch.autograd.grad(gradient.pow(2).sum(), codebook)[0])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("codes", [70, MAX_HISTOGRAM_CODES + 1])
def test_same_inputs_give_same_bits(codes: int) -> None:
    values, tokens = random_values_and_tokens(700, codes, 16)
    assert torch.equal(*(functional.token_sums(values, tokens % 5, codes, "triton") for _ in range(2)))


def test_quantizer_gets_reference_gradient() -> None:
    gradients = []
    for backend in ("reference", "triton"):
        torch.manual_seed(0)
        quantizer = VQ(6, 12, init="normal", backend=backend).to(DEVICE)
        quantizer(torch.randn(2, 6, 5, 5).to(DEVICE)).loss.backward()
        gradients.append(quantizer.codebook.grad)
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("codes", [9, MAX_HISTOGRAM_CODES + 1])
def test_operators_pass_opcheck(codes: int) -> None:
    values, tokens = random_values_and_tokens(40, 9, 5)
    opcheck(torch.ops.arcvq.fused_token_sums.default, (values, tokens, codes))
    opcheck(torch.ops.arcvq.fused_token_counts.default, (tokens, 9))


def test_compiled_lookup_is_embedding_with_custom_backward() -> None:
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func

    graphs: list[list[str]] = []

    def record_graph(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return make_boxed_func(graph.forward)

    def loss(codebook: torch.Tensor, tokens: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return (functional.lookup(codebook, tokens, "triton") * weights).sum()

    weights, tokens = random_values_and_tokens(60, 9, 5)
    codebook = weights[:9].clone().requires_grad_()
    arguments = codebook, tokens.clamp(min=0), weights
    compiled = torch.compile(
        loss, backend=aot_autograd(fw_compiler=record_graph, bw_compiler=record_graph), fullgraph=True
    )
    gradients = [torch.autograd.grad(way(*arguments), codebook)[0] for way in (loss, compiled)]
    assert torch.equal(*gradients)
    forward, backward = graphs
    assert "aten.embedding.default" in forward
    assert not any("arcvq" in name for name in forward)
    assert "arcvq.fused_token_sums.default" in backward


def test_new_token_count_does_not_recompile() -> None:
    if DEVICE == "cpu":
        pytest.skip("the interpreter compiles nothing")
    import triton

    compiled: list[str] = []
    before = triton.knobs.runtime.jit_post_compile_hook
    triton.knobs.runtime.jit_post_compile_hook = lambda *, fn, **_: compiled.append(fn.name)
    try:
        for count in (1000, 1024, 1001, 17, 4096, 70_000):
            for codes in (64, MAX_HISTOGRAM_CODES + 1):
                values, tokens = random_values_and_tokens(count, codes, 16)
                functional.token_sums(values, tokens, codes, "triton")
                functional.token_counts(tokens, codes, "triton")
            if count == 1000:
                compiled.clear()
    finally:
        triton.knobs.runtime.jit_post_compile_hook = before
    assert compiled == []
