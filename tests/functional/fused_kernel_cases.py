"""The Triton kernels against the reference, run by test_fused_kernels.py in Triton's interpreter (or by hand on a GPU:
`pytest tests/functional/fused_kernel_cases.py`)."""

import pytest
import torch
from torch.library import opcheck

from arcvq import functional
from arcvq.functional import kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# tokens, codes, width, top k: one of each, N = top k, N smaller and larger than a block, K and D not multiples of anything
SHAPES = [(1, 1, 4, 1), (3, 5, 8, 3), (70, 9, 5, 3), (129, 1, 20, 8), (200, 130, 70, 16), (300, 70, 16, 1)]


def case(tokens: int, codes: int, width: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens + codes)
    latents = torch.randn(tokens, width, generator=generator).to(dtype).to(DEVICE)
    return latents, torch.randn(codes, width, generator=generator).to(DEVICE)


@pytest.mark.parametrize("metric", functional.METRICS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_tokens_equal_the_reference(shape: tuple[int, ...], dtype: torch.dtype, metric: functional.Metric) -> None:
    latents, codebook = case(*shape[:3], dtype)
    expected = functional.assign(latents, codebook, metric, "reference")
    assert torch.equal(functional.assign(latents, codebook, metric, "triton"), expected)


@pytest.mark.parametrize("metric", functional.METRICS)
def test_ties_go_to_the_lowest_index(metric: functional.Metric) -> None:
    latents, codebook = case(50, 7, 6)
    doubled = torch.cat([codebook] * 20)  # the copies lie in other blocks
    assert int(functional.assign(latents, doubled, metric, "triton").max()) < 7


@pytest.mark.parametrize("scale", [10.0, 64.0])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_loss_and_gradient_equal_the_reference(shape: tuple[int, ...], masked: bool, scale: float) -> None:
    latents, codebook = case(*shape[:3])
    valid = (torch.arange(shape[0], device=DEVICE) % 3 > 0) if masked else None
    values, gradients = [], []
    for backend in ("reference", "triton"):
        leaf = latents.clone().requires_grad_()
        loss = functional.arc_loss(leaf, codebook, scale, 0.1, shape[3], backend, valid=valid)
        loss.backward()
        values.append(loss.detach())
        gradients.append(leaf.grad)
    torch.testing.assert_close(values[1], values[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-6)


def test_codes_that_learn_get_the_reference_gradient() -> None:
    latents, codebook = case(70, 9, 5)
    gradients = []
    for backend in ("reference", "triton"):
        leaves = latents.clone().requires_grad_(), codebook.clone().requires_grad_()
        functional.arc_loss(*leaves, backend=backend, stop_gradient=False).backward()
        gradients.append([leaf.grad for leaf in leaves])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-6)


def test_zero_rows_and_tokens_all_alike() -> None:
    latents, codebook = case(70, 9, 5)
    latents[3:60] = latents[3]
    latents[10], codebook[2] = 0.0, 0.0
    losses = []
    for backend in ("reference", "triton"):
        leaf = latents.clone().requires_grad_()
        losses.append(functional.arc_loss(leaf, codebook, backend=backend))
        losses[-1].backward()
        assert torch.isfinite(leaf.grad).all()
    torch.testing.assert_close(losses[1], losses[0])


def test_the_tokens_are_split_among_programs_without_losing_any() -> None:
    rows = kernels.split_rows(*case(1500, 3, 8), 0.0)
    whole = kernels.statistics(*rows, None, 10.0, 4, splits=1)
    parts = kernels.statistics(*rows, None, 10.0, 4, splits=7)
    torch.testing.assert_close(parts, whole)


@pytest.mark.parametrize("splits", [1, 5])
@pytest.mark.parametrize("metric", functional.METRICS)
def test_splitting_the_codes_changes_no_token_and_no_gradient(metric: functional.Metric, splits: int) -> None:
    latents, codebook = case(90, 3000, 8)
    codebook[2500:] = codebook[:500]  # ties between parts, too
    bias = 0.5 * codebook.square().sum(1) if metric == "euclidean" else None
    expected = functional.assign(latents, codebook, metric, "reference")
    tiling = kernels.Tiling(16, 16, 4)
    assert torch.equal(kernels.assign(latents, codebook, bias, 0.0, tiling, splits), expected)
    rows = kernels.split_rows(latents, codebook, 0.0)
    _, tokens, negatives = kernels.statistics(*rows, None, 10.0, 3)
    slopes = torch.randn(3000, 3, device=DEVICE), torch.randn(3000, device=DEVICE)
    pulls, largest = kernels.pulls_of(tokens, *slopes, 10.0)
    gradients = [
        kernels.backward(latents, *rows, None, negatives, pulls, largest, 1.0, 10.0, splits=n) for n in (1, splits)
    ]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-5)


def test_codes_too_close_to_tell_apart_are_told_apart_in_float32() -> None:
    """Neighbours that differ by less than the products' error: only the second look can find the nearest."""
    latents, codebook = case(40, 1, 16)
    steps = torch.arange(300, device=DEVICE)[:, None] * 1e-7
    near = latents[:1] + steps * torch.randn(16, device=DEVICE)
    codes = torch.cat([codebook, near])
    queries = latents[:1].expand(40, 16).contiguous()
    exact = functional.unit(queries.double()) @ functional.unit(codes.double()).t()
    tokens = functional.assign(queries, codes, "cosine", "triton")
    lost = exact.amax(1) - exact.gather(1, tokens[:, None])[:, 0]
    assert float(lost.max()) < 1.5e-7


def test_the_products_err_less_than_the_search_allows_for() -> None:
    for width in (16, 64, 100):
        latents, codebook = case(300, 64, width)
        top, tokens, _ = kernels.statistics(*kernels.split_rows(latents, codebook, 0.0), None, 10.0, 16)
        exact = (functional.unit(codebook.double()) @ functional.unit(latents.double()).t()).gather(1, tokens)
        assert float((top - exact).abs().max()) < kernels._slack(width) / 2


def test_the_same_inputs_give_the_same_bits() -> None:
    latents, codebook = case(300, 70, 16)
    runs = []
    for _ in range(2):
        leaf = latents.clone().requires_grad_()
        loss = functional.arc_loss(leaf, codebook, backend="triton")
        loss.backward()
        runs.append((loss.detach(), leaf.grad, functional.assign(latents, codebook, backend="triton")))
    assert all(torch.equal(a, b) for a, b in zip(*runs))


def test_no_tensor_of_the_score_matrix_s_size_is_made() -> None:
    latents, codebook = case(600, 400, 4)
    leaf = latents.requires_grad_()
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        functional.arc_loss(leaf, codebook, backend="triton").backward()
    largest = max(event.cpu_memory_usage for event in profile.events())
    assert largest < 600 * 400 * 4 / 4


@pytest.mark.parametrize("masked", [False, True])
def test_the_operators_keep_pytorch_s_rules(masked: bool) -> None:
    latents, codebook = case(40, 6, 5)
    valid = (torch.arange(40, device=DEVICE) % 3 > 0) if masked else None
    leaf = latents.clone().requires_grad_()
    operators = torch.ops.arcvq
    opcheck(operators.fused_assign.default, (latents, codebook, 0.5 * codebook.square().sum(1) if masked else None))
    opcheck(operators.fused_statistics.default, (leaf, codebook, valid, 10.0, 3))
    top_cosines, top_tokens, negatives = operators.fused_statistics(latents, codebook, valid, 10.0, 3)
    slopes = torch.randn_like(top_cosines), torch.randn_like(negatives)
    backward = (latents, codebook, valid, top_tokens, negatives, *slopes, 10.0)
    opcheck(operators.fused_statistics_backward.default, backward)
    learning = top_cosines.requires_grad_(), top_tokens, negatives.requires_grad_()
    opcheck(operators.fused_finish.default, (*learning, 10.0, 0.1, 1e-3, masked))
    opcheck(operators.fused_arc_loss.default, (leaf, codebook, valid, 10.0, 0.1, 3, 1e-3, masked))
    _, *saved = operators.fused_arc_loss(latents, codebook, valid, 10.0, 0.1, 3, 1e-3, masked)
    upstream = torch.tensor(0.5, device=DEVICE)
    opcheck(operators.fused_arc_loss_backward.default, (upstream, latents, valid, *saved, 10.0, 0.1, 1e-3))


@pytest.mark.parametrize("monotone", [False, True])
@pytest.mark.parametrize("scale", [10.0, 64.0])
def test_the_finish_equals_the_reference(scale: float, monotone: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    cosines = (2 * torch.rand(300, 3, generator=generator) - 1).to(DEVICE)
    cosines[0], cosines[1] = 1.0, -1.0
    tokens = torch.arange(900, device=DEVICE).view(300, 3)
    cosines[2], tokens[2] = float("-inf"), -1  # a code that no token came to
    cosines[3, 1:], tokens[3, 1:] = float("-inf"), -1
    negatives = scale * (4 * torch.rand(300, generator=generator) - 2).to(DEVICE)
    negatives[4] = float("-inf")
    results = []
    for backend in ("reference", "triton"):
        leaves = cosines.clone().requires_grad_(), negatives.clone().requires_grad_()
        statistics = functional.ArcStatistics(leaves[0], tokens, leaves[1])
        loss = functional.arc_finish(statistics, scale=scale, margin=0.1, monotone=monotone, backend=backend)
        loss.backward()
        results.append((loss.detach(), *(torch.nan_to_num(leaf.grad) for leaf in leaves)))
    torch.testing.assert_close(results[1], results[0], rtol=2e-5, atol=1e-7)
