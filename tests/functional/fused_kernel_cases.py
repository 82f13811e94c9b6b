"""The Triton kernels against the reference, run by test_fused_kernels.py in Triton's interpreter (on a GPU by hand:
`pytest tests/functional/fused_kernel_cases.py`)."""

import pytest
import torch
from torch.library import opcheck

from arcvq import ArcVQ, ArcvqError, functional
from arcvq.functional.kernels import arc_backward_kernels, arc_kernels, row_kernels, search_kernels
from arcvq.functional.kernels.tilings import Tiling

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# tokens, codes, width, top k: one of each, N = top k, N smaller and larger than a block, K and D not multiples of anything
SHAPES = [(1, 1, 4, 1), (3, 5, 8, 3), (70, 9, 5, 3), (129, 1, 20, 8), (200, 130, 70, 16), (300, 70, 16, 1)]
SHAPES_OF_HALF = [(SHAPES[2], torch.bfloat16), (SHAPES[4], torch.float16)]


def random_inputs(
    tokens: int, codes: int, width: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens + codes)
    latents = torch.randn(tokens, width, generator=generator).to(dtype).to(DEVICE)
    return latents, torch.randn(codes, width, generator=generator).to(DEVICE)


@pytest.mark.parametrize("metric", functional.METRICS)
@pytest.mark.parametrize(("shape", "dtype"), [*((shape, torch.float32) for shape in SHAPES), *SHAPES_OF_HALF])
def test_tokens_equal_reference(shape: tuple[int, ...], dtype: torch.dtype, metric: functional.Metric) -> None:
    latents, codebook = random_inputs(*shape[:3], dtype)
    expected = functional.assign(latents, codebook, metric, "reference")
    assert torch.equal(functional.assign(latents, codebook, metric, "triton"), expected)


@pytest.mark.parametrize("metric", functional.METRICS)
def test_ties_go_to_the_lowest_index(metric: functional.Metric) -> None:
    latents, codebook = random_inputs(50, 7, 6)
    doubled = torch.cat([codebook] * 20)  # the copies lie in other blocks
    assert int(functional.assign(latents, doubled, metric, "triton").max()) < 7


@pytest.mark.parametrize(("masked", "scale"), [(False, 10.0), (True, 64.0)])
@pytest.mark.parametrize("shape", SHAPES)
def test_loss_and_gradient_match_float64_reference(shape: tuple[int, ...], masked: bool, scale: float) -> None:
    latents, codebook = random_inputs(*shape[:3])
    assert_matches_reference(latents, codebook, shape[3], scale, masked, atol=1e-6)


@pytest.mark.parametrize(("shape", "dtype"), SHAPES_OF_HALF)
def test_half_precision_latents_get_float32_gradient(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    latents, codebook = random_inputs(*shape[:3], dtype)
    coarse = torch.finfo(dtype).eps
    assert_matches_reference(latents, codebook, shape[3], 10.0, False, rtol=2 * coarse, atol=coarse * 1e-2)


@pytest.mark.parametrize("width", [4, 64, 65, 129, 1000, 1024])
def test_any_row_width_matches_reference(width: int) -> None:
    latents, codebook = random_inputs(20, 10, width)
    assert_matches_reference(latents, codebook, 3, 10.0, True, atol=1e-6)
    for metric in functional.METRICS:
        expected = functional.assign(latents, codebook, metric, "reference")
        assert torch.equal(functional.assign(latents, codebook, metric, "triton"), expected)


def assert_matches_reference(
    latents: torch.Tensor,
    codebook: torch.Tensor,
    top_k: int,
    scale: float,
    masked: bool,
    *,
    rtol: float = 1e-4,
    atol: float,
) -> None:
    """Check loss and gradient of the kernels against the reference in float64."""
    valid = (torch.arange(len(latents), device=DEVICE) % 3 > 0) if masked else None
    oracle = latents.double().requires_grad_()
    expected = functional.arc_loss(oracle, codebook.double(), scale, 0.1, top_k, "reference", valid=valid)
    leaf = latents.clone().requires_grad_()
    loss = functional.arc_loss(leaf, codebook, scale, 0.1, top_k, "triton", valid=valid)
    gradients = torch.autograd.grad(expected, oracle)[0], torch.autograd.grad(loss, leaf)[0]
    assert gradients[1].dtype == latents.dtype
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradients[1].double(), gradients[0], rtol=rtol, atol=atol)


def test_new_token_count_does_not_recompile() -> None:
    if DEVICE == "cpu":
        pytest.skip("the interpreter compiles nothing")
    import triton

    compiled: list[str] = []
    before = triton.knobs.runtime.jit_post_compile_hook
    triton.knobs.runtime.jit_post_compile_hook = lambda *, fn, **_: compiled.append(fn.name)
    try:
        for tokens in (1000, 1024, 1001, 17, 4096):
            latents, codebook = random_inputs(tokens, 64, 16)
            functional.assign(latents, codebook, "cosine", "triton")
            functional.arc_loss(latents.requires_grad_(), codebook, backend="triton").backward()
            if tokens == 1000:
                compiled.clear()
    finally:
        triton.knobs.runtime.jit_post_compile_hook = before
    # The merge is compiled for the number of parts, rounded to a power of two: a few times.
    assert [name for name in compiled if "merge" not in name] == []


def test_trained_codes_get_reference_gradient() -> None:
    latents, codebook = random_inputs(70, 9, 5)
    gradients = []
    for backend in ("reference", "triton"):
        leaves = latents.clone().requires_grad_(), codebook.clone().requires_grad_()
        functional.arc_loss(*leaves, backend=backend, stop_gradient=False).backward()
        gradients.append([leaf.grad for leaf in leaves])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-6)


def test_zero_rows_and_equal_tokens_match_reference() -> None:
    latents, codebook = random_inputs(70, 9, 5)
    latents[3:60] = latents[3]
    latents[10], codebook[2] = 0.0, 0.0
    losses = []
    for backend in ("reference", "triton"):
        leaf = latents.clone().requires_grad_()
        losses.append(functional.arc_loss(leaf, codebook, backend=backend))
        losses[-1].backward()
        assert torch.isfinite(leaf.grad).all()
    torch.testing.assert_close(losses[1], losses[0])


def test_strided_mask_equals_contiguous_mask() -> None:
    latents, codebook = random_inputs(60, 9, 5)
    strided = (torch.arange(120, device=DEVICE) % 5 > 0)[::2]
    losses = [functional.arc_loss(latents, codebook, backend="triton", valid=v) for v in (strided, strided.clone())]
    assert torch.equal(*losses)


def test_nan_latent_gives_nan_loss() -> None:
    latents, codebook = random_inputs(60, 9, 5)
    latents[7] = float("nan")
    assert functional.arc_loss(latents, codebook, backend="triton").isnan()


def test_top_k_above_kernel_limit_matches_reference() -> None:
    latents, codebook = random_inputs(100, 9, 5)
    losses = [functional.arc_loss(latents, codebook, top_k=40, backend=b) for b in ("triton", "reference")]
    torch.testing.assert_close(*losses)


def test_zero_latents_get_reference_tokens() -> None:
    latents, codebook = random_inputs(40, 50, 8)
    latents[::2] = 0.0
    tokens = functional.assign(latents, codebook, "cosine", "triton")
    assert torch.equal(tokens, functional.assign(latents, codebook, "cosine", "reference"))


def test_statistics_do_not_depend_on_token_splits() -> None:
    rows = row_kernels.split_rows(*random_inputs(600, 3, 8), 0.0)
    whole = arc_kernels.statistics(*rows, None, 10.0, 4, splits=1)
    parts = arc_kernels.statistics(*rows, None, 10.0, 4, splits=7)
    torch.testing.assert_close(parts, whole)


@pytest.mark.parametrize("metric", functional.METRICS)
def test_tokens_and_gradient_do_not_depend_on_code_splits(metric: functional.Metric) -> None:
    latents, codebook = random_inputs(40, 400, 8)
    codebook[300:] = codebook[:100]  # ties between parts, too
    bias = 0.5 * codebook.square().sum(1) if metric == "euclidean" else None
    expected = functional.assign(latents, codebook, metric, "reference")
    tiling = Tiling(16, 16, 4)
    assert torch.equal(search_kernels.assign(latents, codebook, bias, 0.0, tiling, splits=2), expected)
    rows = row_kernels.split_rows(latents, codebook, 0.0)
    _, tokens, negatives = arc_kernels.statistics(*rows, None, 10.0, 3)
    slopes = torch.randn(400, 3, device=DEVICE), torch.randn(400, device=DEVICE)
    pulls, largest = arc_backward_kernels.scale_pulls(tokens, *slopes, 10.0)
    gradients = [
        arc_backward_kernels.backward(latents, *rows, None, negatives, pulls, largest, 1.0, 10.0, splits=n)
        for n in (1, 2)
    ]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-5)


def test_nearly_equal_codes_are_compared_in_float32() -> None:
    """Codes that differ by less than the products' error: only the float32 search finds the nearest."""
    latents, codebook = random_inputs(40, 1, 16)
    steps = torch.arange(300, device=DEVICE)[:, None] * 1e-7
    near = latents[:1] + steps * torch.randn(16, device=DEVICE)
    codes = torch.cat([codebook, near])
    queries = latents[:1].expand(40, 16).contiguous()
    exact = functional.unit(queries.double()) @ functional.unit(codes.double()).t()
    tokens = functional.assign(queries, codes, "cosine", "triton")
    lost = exact.amax(1) - exact.gather(1, tokens[:, None])[:, 0]
    assert float(lost.max()) < 1.5e-7


def test_ambiguous_part_is_searched_again_beside_clear_part() -> None:
    """The nearest two codes are close together in the second part, and the best of the first part is hardly farther."""
    latents, codebook = random_inputs(1, 1200, 16)
    query = functional.unit(latents.double())
    across = functional.unit(torch.linalg.cross(query[:, :3], torch.ones_like(query[:, :3])))
    sideways = torch.nn.functional.pad(across, (0, 13))
    for place, distance in ((10, 3e-6), (900, 1.05e-6), (901, 1e-6)):
        codebook[place] = (query + (2 * distance) ** 0.5 * sideways)[0].float()
    exact = query @ functional.unit(codebook.double()).t()
    token = search_kernels.assign(latents, codebook, None, 0.0, Tiling(16, 16, 4), 2)
    assert token.item() in (900, 901)
    assert float(exact.max() - exact[0, token.item()]) < 1.5e-7


def test_product_error_is_below_search_tolerance() -> None:
    for width in (16, 64, 100):
        latents, codebook = random_inputs(300, 64, width)
        top, tokens, _ = arc_kernels.statistics(*row_kernels.split_rows(latents, codebook, 0.0), None, 10.0, 16)
        exact = (functional.unit(codebook.double()) @ functional.unit(latents.double()).t()).gather(1, tokens)
        assert float((top - exact).abs().max()) < search_kernels._score_error(width) / 2


def test_same_inputs_give_same_bits() -> None:
    latents, codebook = random_inputs(300, 70, 16)
    runs = []
    for _ in range(2):
        leaf = latents.clone().requires_grad_()
        loss = functional.arc_loss(leaf, codebook, backend="triton")
        loss.backward()
        runs.append((loss.detach(), leaf.grad, functional.assign(latents, codebook, backend="triton")))
    assert all(torch.equal(a, b) for a, b in zip(*runs))


def test_score_matrix_is_never_allocated() -> None:
    latents, codebook = random_inputs(600, 400, 4)
    leaf = latents.requires_grad_()
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        functional.arc_loss(leaf, codebook, backend="triton").backward()
    largest = max(event.cpu_memory_usage for event in profile.events())
    assert largest < 600 * 400 * 4 / 4


@pytest.mark.parametrize("masked", [False, True])
def test_operators_pass_opcheck(masked: bool) -> None:
    latents, codebook = random_inputs(12, 3, 5)
    valid = (torch.arange(12, device=DEVICE) % 3 > 0) if masked else None
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
    opcheck(operators.fused_arc_loss.default, (leaf, codebook, valid, 10.0, 0.1, 3, 1e-3, masked, not masked))
    _, _, *saved = operators.fused_arc_loss(latents, codebook, valid, 10.0, 0.1, 3, 1e-3, masked, False)
    upstream = torch.tensor(0.5, device=DEVICE)
    opcheck(operators.fused_arc_loss_backward.default, (upstream, latents, valid, *saved, 10.0, 0.1, 1e-3))


@pytest.mark.parametrize("monotone", [False, True])
@pytest.mark.parametrize("scale", [10.0, 64.0])
def test_finish_equals_reference(scale: float, monotone: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    cosines = (2 * torch.rand(300, 3, generator=generator) - 1).to(DEVICE)
    cosines[0], cosines[1] = 1.0, -1.0
    tokens = torch.arange(900, device=DEVICE).view(300, 3)
    cosines[2], tokens[2] = float("-inf"), -1  # a code without tokens
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


@pytest.mark.parametrize("masked", [False, True])
def test_assign_and_arc_loss_equals_separate_calls(masked: bool) -> None:
    latents, codebook = random_inputs(300, 40, 24)
    valid = (torch.arange(len(latents), device=DEVICE) % 3 > 0) if masked else None
    apart, together = (latents.clone().requires_grad_() for _ in range(2))
    expected = functional.arc_loss(apart, codebook, top_k=4, backend="triton", valid=valid)
    tokens, loss = functional.assign_and_arc_loss(together, codebook, top_k=4, backend="triton", valid=valid)
    assert torch.equal(tokens, functional.assign(latents, codebook, "cosine", "triton"))
    assert torch.equal(loss, expected)
    assert torch.equal(torch.autograd.grad(loss, together)[0], torch.autograd.grad(expected, apart)[0])


def test_memory_offset_and_integer_scale_change_nothing() -> None:
    latents, codebook = random_inputs(130, 20, 16)
    upstream = []
    for offset, scale in ((0, 10.0), (1, 10.0), (2, 10), (0, 10)):
        moved = [
            torch.empty(x.numel() + offset, device=DEVICE)[offset:].view_as(x).copy_(x) for x in (latents, codebook)
        ]
        leaf = moved[0].requires_grad_()
        tokens, loss = functional.assign_and_arc_loss(leaf, moved[1], scale, backend="triton")
        upstream.append((tokens, loss.detach(), torch.autograd.grad(loss, leaf)[0]))
    for other in upstream[1:]:
        assert all(torch.equal(a, b) for a, b in zip(other, upstream[0]))


def test_scaled_float16_loss_keeps_small_gradients() -> None:
    latents, codebook = random_inputs(2000, 8, 16)
    leaf, whole = latents.half().requires_grad_(), latents.half().float().requires_grad_()
    for each in (leaf, whole):
        (functional.arc_loss(each, codebook, backend="triton") * 65536).backward()
    assert leaf.grad is not None
    assert whole.grad is not None
    torch.testing.assert_close(leaf.grad.float(), whole.grad, rtol=1e-2, atol=1e-6 * float(whole.grad.abs().max()))


def test_no_grad_computes_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    latents, codebook = random_inputs(60, 9, 5)
    leaf = latents.requires_grad_()
    monkeypatch.setattr(arc_backward_kernels, "backward", lambda *_: pytest.fail("a gradient that nobody asked for"))
    for off in (torch.no_grad, torch.inference_mode):
        with off():
            assert not functional.arc_loss(leaf, codebook, backend="triton").requires_grad


def test_second_derivative_raises() -> None:
    latents, codebook = random_inputs(60, 9, 5)
    leaf = latents.requires_grad_()
    loss = functional.arc_loss(leaf, codebook, backend="triton")
    (gradient,) = torch.autograd.grad(loss, leaf, create_graph=True)
    assert torch.equal(gradient, torch.autograd.grad(loss, leaf, retain_graph=True)[0])
    with pytest.raises(ArcvqError, match="no second derivative"):
        (loss + gradient.pow(2).sum()).backward()


def test_retained_graph_gives_same_gradient_again() -> None:
    latents, codebook = random_inputs(60, 9, 5)
    leaf = latents.requires_grad_()
    loss = functional.arc_loss(leaf, codebook, backend="triton")
    first, second = (torch.autograd.grad(loss, leaf, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("options", "masked"),
    [
        ({}, False),
        ({}, True),
        ({"heads": 2}, True),
        ({"code_dim": 4}, False),
        ({"metric": "euclidean"}, True),
        ({"estimator": "rotation"}, False),
    ],
)
def test_layer_trains_as_with_reference(options: dict[str, object], masked: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    latents = torch.randn(2, 6, 5, 5, generator=generator).to(DEVICE)
    mask = (torch.rand(2, 5, 5, generator=generator) > 0.3).to(DEVICE) if masked else None
    found = []
    for backend in ("reference", "triton"):
        torch.manual_seed(0)
        quantizer = ArcVQ(6, 12, backend=backend, **options).to(DEVICE)
        leaf = latents.clone().requires_grad_()
        out = quantizer(leaf, mask)
        (out.loss + out.quantized.square().sum()).backward()
        found.append((out.tokens, out.losses, leaf.grad, [p.grad for p in quantizer.parameters()]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
