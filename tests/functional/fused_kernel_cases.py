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


def test_the_tokens_are_split_among_programs_without_losing_any(monkeypatch: pytest.MonkeyPatch) -> None:
    latents, codebook = case(1500, 3, 8)
    latents, codebook = functional.unit(latents), functional.unit(codebook)
    parts = kernels.statistics(latents, codebook, None, 10.0, 4)
    assert parts[0].shape[1] > 1
    monkeypatch.setattr(kernels, "PROGRAMS", 1)
    whole = kernels.statistics(latents, codebook, None, 10.0, 4)
    assert whole[0].shape[1] == 1
    merged = functional.arc_merge(
        [functional.ArcStatistics(*part) for part in zip(*(each.unbind(1) for each in parts))], 10.0
    )
    torch.testing.assert_close(merged.top_cosines, whole[0][:, 0].sort(dim=1, descending=True).values)
    torch.testing.assert_close(merged.negatives, whole[2][:, 0])


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


def test_the_operators_keep_pytorch_s_rules() -> None:
    latents, codebook = (functional.unit(x) for x in case(40, 6, 5))
    leaf = latents.clone().requires_grad_()
    opcheck(torch.ops.arcvq.assign.default, (latents, codebook, None, True))
    opcheck(torch.ops.arcvq.arc_statistics.default, (leaf, codebook, None, 10.0, 3, True))
