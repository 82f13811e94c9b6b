"""ArcLoss as a whole (Eqs. 10 to 12): closed forms, the loop oracle, gradients, both backends."""

import math

import float64_oracles as oracle
import pytest
import torch

from arcvq import ArcvqError
from arcvq.functional import arc_loss, assign, assign_and_arc_loss, chunks

BACKENDS = ("reference", "chunked")


def equal_angle_inputs(angle: float, tokens: int, codes: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Every token at the same angle from every code; norms differ."""
    direction = torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)
    latents = direction * torch.linspace(0.5, 4.0, tokens, dtype=torch.float64).unsqueeze(1)
    codebook = torch.tensor([1.0, 0.0], dtype=torch.float64) * torch.arange(1, codes + 1).unsqueeze(1)
    return latents.to(dtype), codebook.to(dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [10.0, 30.0, 64.0])
@pytest.mark.parametrize("angle", [0.0, 0.3, 1.5, 3.0])
def test_equal_cosines_give_closed_form(angle: float, scale: float, dtype: torch.dtype, backend: str) -> None:
    tokens, top_k, margin = 50, 3, 0.1
    latents, codebook = equal_angle_inputs(angle, tokens, 7, dtype)
    gain = scale * (math.cos(angle) - math.cos(angle + margin))
    expected = math.log1p((tokens - top_k) / top_k * math.exp(gain))
    value = arc_loss(latents, codebook, scale, margin, top_k, backend=backend)
    # A logit is s times a cosine, and so is its rounding: 1e-5 in float32 at the paper's s = 10.
    assert value.item() == pytest.approx(expected, abs=1e-6 * scale if dtype == torch.float32 else 1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_cosines_without_margin_give_log_n_over_k(backend: str) -> None:
    latents, codebook = equal_angle_inputs(0.7, 60, 5, torch.float64)
    assert arc_loss(latents, codebook, margin=0.0, backend=backend).item() == pytest.approx(math.log(60 / 3), abs=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("top_k", [1, 3, 8])
def test_loss_and_gradient_are_zero_when_all_latents_are_top_k(top_k: int, backend: str) -> None:
    latents = torch.randn(top_k, 4, requires_grad=True)
    codebook = torch.randn(6, 4)
    loss = arc_loss(latents, codebook, top_k=top_k, backend=backend)
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(latents.grad, torch.zeros_like(latents))


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_latents_get_gradient_and_it_is_orthogonal(backend: str) -> None:
    latents = torch.randn(40, 6, dtype=torch.float64, requires_grad=True)
    codebook = torch.randn(9, 6, dtype=torch.float64, requires_grad=True)
    arc_loss(latents, codebook, backend=backend).backward()
    assert codebook.grad is None
    assert latents.grad.norm() > 1e-3
    along = (latents.grad * latents.detach()).sum(dim=1)
    assert along.abs().max() < 1e-14


@pytest.mark.parametrize("backend", BACKENDS)
def test_codebook_gets_gradient_without_stop_gradient(backend: str) -> None:
    latents = torch.randn(20, 4, dtype=torch.float64)
    codebook = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    arc_loss(latents, codebook, backend=backend, stop_gradient=False).backward()
    assert (codebook.grad.norm(dim=1) > 1e-4).all()
    assert (codebook.grad * codebook.detach()).sum(dim=1).abs().max() < 1e-14


@pytest.mark.parametrize("backend", BACKENDS)
def test_loss_does_not_depend_on_norms(backend: str) -> None:
    latents, codebook = torch.randn(30, 5, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    scaled = arc_loss(latents * torch.rand(30, 1) * 100, codebook * 0.01, backend=backend)
    assert scaled.item() == pytest.approx(arc_loss(latents, codebook, backend=backend).item(), abs=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("monotone", [False, True])
@pytest.mark.parametrize(
    ("scale", "margin", "top_k", "tokens", "codes"),
    [(10, 0.1, 3, 23, 6), (5, 0.5, 1, 11, 1), (20, 1.0, 8, 17, 4), (64, 0.1, 3, 3, 5), (10, 3.0, 4, 5, 7)],
)
def test_value_equals_loops_over_equation_11(
    scale: float, margin: float, top_k: int, tokens: int, codes: int, monotone: bool, backend: str, small_blocks: None
) -> None:
    latents, codebook = torch.randn(tokens, 3), torch.randn(codes, 3)
    expected = oracle.arc_loss(
        oracle.rows_of(latents), oracle.rows_of(codebook), scale, margin, top_k, monotone=monotone
    )
    precise = arc_loss(latents.double(), codebook.double(), scale, margin, top_k, backend=backend, monotone=monotone)
    assert precise.item() == pytest.approx(expected, abs=1e-10)
    single = arc_loss(latents, codebook, scale, margin, top_k, backend=backend, monotone=monotone)
    assert single.dtype == torch.float32
    assert single.item() == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_masked_latents_do_not_count(backend: str, small_blocks: None) -> None:
    latents = torch.randn(25, 3, dtype=torch.float64, requires_grad=True)
    codebook = torch.randn(4, 3, dtype=torch.float64)
    valid = torch.rand(25) > 0.4
    loss = arc_loss(latents, codebook, backend=backend, valid=valid)
    loss.backward()
    expected = oracle.arc_loss(oracle.rows_of(latents), oracle.rows_of(codebook), 10, 0.1, 3, valid.tolist())
    assert loss.item() == pytest.approx(expected, abs=1e-12)
    kept = latents.detach()[valid].requires_grad_()
    arc_loss(kept, codebook, backend=backend).backward()
    torch.testing.assert_close(latents.grad[valid], kept.grad, rtol=1e-12, atol=1e-14)
    assert torch.equal(latents.grad[~valid], torch.zeros_like(latents.grad[~valid]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_loss_of_padding_only_is_zero(backend: str) -> None:
    latents = torch.randn(6, 3, requires_grad=True)
    loss = arc_loss(latents, torch.randn(4, 3), backend=backend, valid=torch.zeros(6, dtype=torch.bool))
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(latents.grad, torch.zeros(6, 3))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("stop_gradient", [False, True])
def test_gradients_agree_with_finite_differences(stop_gradient: bool, backend: str, small_blocks: None) -> None:
    latents = torch.randn(13, 3, dtype=torch.float64, requires_grad=True)
    codebook = torch.randn(5, 3, dtype=torch.float64, requires_grad=not stop_gradient)

    def loss(z: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        return arc_loss(z, e, 10.0, 0.3, 2, backend=backend, stop_gradient=stop_gradient)

    assert torch.autograd.gradcheck(loss, (latents, codebook))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("tokens", "codes", "top_k", "elements"),
    [(53, 7, 3, 70), (53, 1, 3, 10), (3, 5, 3, 5), (40, 8, 3, 80), (41, 8, 5, 16), (9, 50, 2, 10)],
    ids=["uneven", "one code", "N is top_k", "even", "blocks smaller than top_k", "one token a block"],
)
def test_chunked_equals_reference(
    tokens: int,
    codes: int,
    top_k: int,
    elements: int,
    dtype: torch.dtype,
    masked: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(chunks.BLOCK_ELEMENTS, "cpu", elements)
    start, book = torch.randn(tokens, 4).to(dtype), torch.randn(codes, 4).to(dtype)
    start[0] = 0  # a zero latent
    valid = torch.rand(tokens) > 0.3 if masked else None
    results = []
    for backend in BACKENDS:
        latents, codebook = start.clone().requires_grad_(), book.clone().requires_grad_()
        loss = arc_loss(latents, codebook, 10.0, 0.1, top_k, backend=backend, stop_gradient=False, valid=valid)
        loss.backward()
        results.append((loss.detach(), latents.grad, codebook.grad))
    tolerance = 1e-12 if dtype == torch.float64 else 2e-5
    rounding = {torch.bfloat16: 2**-7, torch.float16: 2**-9}.get(dtype, tolerance)
    for value, expected in zip(results[1], results[0]):
        assert value.dtype == expected.dtype
        assert torch.isfinite(value).all()
        torch.testing.assert_close(value, expected, rtol=rounding, atol=tolerance)


def test_backends_agree_on_loss_and_total_gradient_of_equal_latents(
    small_blocks: None,
) -> None:
    """Blank image patches give equal latents; backends may choose different ones of them as top tokens."""
    distinct, book = torch.randn(6, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    results = []
    for backend in BACKENDS:
        latents, codebook = distinct.repeat(7, 1).requires_grad_(), book.clone().requires_grad_()
        loss = arc_loss(latents, codebook, backend=backend, stop_gradient=False)
        loss.backward()
        results.append((loss.detach(), latents.grad.reshape(7, 6, 4).sum(dim=0), codebook.grad))
    for value, expected in zip(*results):
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-12)


def test_zero_code_gives_equal_finite_loss_in_all_backends(small_blocks: None) -> None:
    start, book = torch.randn(20, 4), torch.randn(5, 4)
    book[2] = 0
    results = []
    for backend in BACKENDS:
        latents, codebook = start.clone().requires_grad_(), book.clone().requires_grad_()
        loss = arc_loss(latents, codebook, backend=backend, stop_gradient=False)
        loss.backward()
        assert torch.isfinite(codebook.grad).all()
        results.append((loss.detach(), latents.grad))
    for value, expected in zip(*results):
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_half_precision_inputs_are_computed_in_float32(backend: str) -> None:
    latents, codebook = torch.randn(30, 4).bfloat16(), torch.randn(6, 4).bfloat16()
    half = arc_loss(latents, codebook, backend=backend)
    assert half.dtype == torch.float32
    assert torch.equal(half, arc_loss(latents.float(), codebook.float(), backend=backend))


@pytest.mark.parametrize("backend", BACKENDS)
def test_large_scale_does_not_overflow(backend: str) -> None:
    """At s = 1000 exp(s·cos θ) is far beyond float32; the loss of a code whose tokens equal it stays finite."""
    latents = torch.eye(4)[[0, 0, 0, 1, 2]].requires_grad_()
    loss = arc_loss(latents, torch.eye(4)[:1], scale=1000.0, margin=0.1, backend=backend)
    loss.backward()
    assert loss.item() == 0.0
    assert torch.isfinite(latents.grad).all()


def test_auto_is_chunked_on_cpu() -> None:
    latents, codebook = torch.randn(30, 4), torch.randn(6, 4)
    assert torch.equal(arc_loss(latents, codebook), arc_loss(latents, codebook, backend="chunked"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"top_k": 6}, "top_k is 6 but there are only 5 latents"),
        ({"top_k": 0}, "top_k must be at least 1, got 0"),
        ({"scale": 0.0}, "scale must be positive, got 0.0"),
        ({"backend": "fast"}, "unknown backend 'fast': expected one of auto, reference, chunked"),
        ({"latents": torch.zeros(5, 2)}, "latents are 2 wide but the codebook's codes are 3 wide"),
        ({"latents": torch.zeros(5, 2, 3)}, "expected latents (N, D) and codebook (K, D), got shapes (5, 2, 3)"),
        ({"codebook": torch.zeros(0, 3)}, "the codebook is empty"),
    ],
)
def test_wrong_arguments_raise_with_reason(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ArcvqError) as raised:
        arc_loss(**{"latents": torch.ones(5, 3), "codebook": torch.ones(4, 3), **arguments})
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("margin", [0.0, 0.1, 0.5])
def test_top_1_loss_is_cross_entropy_of_arcface_logits(margin: float) -> None:
    """The paper's appendix: each code is a sample, its nearest token the class it belongs to, all tokens the classes."""
    latents = torch.randn(30, 5, dtype=torch.float64, requires_grad=True)
    codebook = torch.randn(7, 5, dtype=torch.float64)
    unit = torch.nn.functional.normalize
    cosines = unit(codebook, dim=1) @ unit(latents, dim=1).t()  # (K, N)
    target = cosines.argmax(dim=1)
    own = torch.nn.functional.one_hot(target, 30).bool()
    logits = 10.0 * torch.where(own, torch.cos(torch.arccos(cosines) + margin), cosines)
    expected = torch.nn.functional.cross_entropy(logits, target)
    loss = arc_loss(latents, codebook, 10.0, margin, top_k=1)
    torch.testing.assert_close(loss, expected)
    ours, theirs = (torch.autograd.grad(value, latents)[0] for value in (loss, expected))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_assign_and_arc_loss_equals_separate_calls(backend: str) -> None:
    torch.manual_seed(0)
    latents, codebook = torch.randn(50, 6), torch.randn(9, 6)
    tokens, loss = assign_and_arc_loss(latents, codebook, top_k=2, backend=backend)
    assert torch.equal(tokens, assign(latents, codebook, "cosine", backend))
    assert torch.equal(loss, arc_loss(latents, codebook, top_k=2, backend=backend))


def test_reference_has_second_derivative() -> None:
    torch.manual_seed(0)
    latents, codebook = torch.randn(7, 3, dtype=torch.float64, requires_grad=True), torch.randn(4, 3).double()
    assert torch.autograd.gradgradcheck(lambda z: arc_loss(z, codebook, top_k=2, backend="reference"), latents)


def test_chunked_second_derivative_raises() -> None:
    latents = torch.randn(20, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(
        arc_loss(latents, torch.randn(4, 3), backend="chunked"), latents, create_graph=True
    )
    with pytest.raises(RuntimeError, match="no autograd formula"):
        gradient.sum().backward()


def test_larger_batch_raises_the_value_by_a_logarithm_and_pulls_each_nearest_token_as_far() -> None:
    """What a larger batch changes: gradients of means over tokens become smaller, those of the ArcLoss do not."""
    generator = torch.Generator().manual_seed(0)
    latents, codebook = torch.randn(8192, 16, generator=generator), torch.randn(64, 16, generator=generator)
    values, pulls = [], []
    for tokens in (2048, 8192):
        part = latents[:tokens].requires_grad_()
        value = arc_loss(part, codebook, top_k=3)
        (gradient,) = torch.autograd.grad(value, part)
        values.append(value.item())
        pulls.append(gradient.norm(dim=1).topk(64).values.mean().item())
    assert 0.5 * math.log(4) < values[1] - values[0] < math.log(4)
    assert pulls[1] == pytest.approx(pulls[0], rel=0.1)
