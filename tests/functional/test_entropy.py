"""The entropy term: mean_i H(p_i) − H(mean_i p_i)."""

import math

import float64_oracles as oracle
import pytest
import torch

from arcvq import ArcvqError
from arcvq.functional import chunks, entropy_loss, entropy_statistics, lattice_digits, sign_entropy_statistics

BACKENDS = ("reference", "chunked")
METRICS = ("cosine", "euclidean")


def entropy_loss_of(latents: torch.Tensor, codebook: torch.Tensor, **options: object) -> torch.Tensor:
    return entropy_loss(*entropy_statistics(latents, codebook, **options), latents.shape[0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("metric", METRICS)
def test_one_hot_balanced_tokens_give_minus_log_k(metric: str, backend: str) -> None:
    codebook = 5 * torch.eye(6)
    loss = entropy_loss_of(codebook.repeat(4, 1), codebook, temperature=0.01, metric=metric, backend=backend)
    assert loss.item() == pytest.approx(-math.log(6), abs=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_distributions_give_zero(backend: str) -> None:
    latents = torch.randn(1, 4).repeat(12, 1)
    loss = entropy_loss_of(latents, torch.randn(6, 4), temperature=1.0, backend=backend)
    assert loss.item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("temperature", [0.01, 0.3, 2.0])
@pytest.mark.parametrize("masked", [False, True])
def test_both_sums_equal_loop(temperature: float, metric: str, backend: str, masked: bool, small_blocks: None) -> None:
    latents, codebook = torch.randn(31, 3, dtype=torch.float64), torch.randn(7, 3, dtype=torch.float64)
    valid = torch.rand(31) > 0.4 if masked else None
    total, share = entropy_statistics(latents, codebook, temperature, metric, backend, valid)
    expected_total, expected_share = oracle.entropy(
        oracle.rows_of(latents), oracle.rows_of(codebook), temperature, metric, valid.tolist() if masked else None
    )
    assert total.item() == pytest.approx(expected_total, abs=1e-10)
    torch.testing.assert_close(share, torch.tensor(expected_share, dtype=torch.float64), rtol=0, atol=1e-10)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("metric", METRICS)
def test_gradients_agree_with_finite_differences(metric: str, backend: str, small_blocks: None) -> None:
    latents = torch.randn(11, 3, dtype=torch.float64, requires_grad=True)
    codebook = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    valid = torch.tensor([True] * 8 + [False] * 3)

    def sums(z: torch.Tensor, e: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return entropy_statistics(z, e, 0.7, metric, backend, valid)

    assert torch.autograd.gradcheck(sums, (latents, codebook))
    assert torch.autograd.gradcheck(lambda z, e: entropy_loss(*sums(z, e), 8), (latents, codebook))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(("tokens", "codes", "elements"), [(53, 7, 70), (20, 1, 3), (16, 8, 64), (5, 30, 10)])
def test_chunked_equals_reference(
    tokens: int, codes: int, elements: int, metric: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(chunks.BLOCK_ELEMENTS, "cpu", elements)
    start, book = torch.randn(tokens, 4).to(dtype), torch.randn(codes, 4).to(dtype)
    start[0] = 0
    results = []
    for backend in BACKENDS:
        latents, codebook = start.clone().requires_grad_(), book.clone().requires_grad_()
        loss = entropy_loss_of(latents, codebook, temperature=0.2, metric=metric, backend=backend)
        loss.backward()
        results.append((loss.detach(), latents.grad, codebook.grad))
    tolerance = 1e-12 if dtype == torch.float64 else 2e-5
    for value, expected in zip(results[1], results[0]):
        assert torch.isfinite(value).all()
        torch.testing.assert_close(
            value, expected, rtol=2**-7 if dtype == torch.bfloat16 else tolerance, atol=tolerance
        )


def test_shards_add_up_to_whole_batch() -> None:
    latents, codebook = torch.randn(20, 3, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    parts = [entropy_statistics(part, codebook, 0.5) for part in latents.split([1, 0, 12, 7])]
    whole = entropy_statistics(latents, codebook, 0.5)
    for index in (0, 1):
        torch.testing.assert_close(sum(part[index] for part in parts), whole[index], rtol=0, atol=1e-12)


def test_code_without_probability_has_finite_gradient() -> None:
    latents = torch.tensor([[1.0, 0.0]] * 4, requires_grad=True)
    codebook = torch.tensor([[1.0, 0.0], [-100.0, 0.0]], requires_grad=True)
    loss = entropy_loss_of(latents, codebook, temperature=0.01)
    loss.backward()
    assert loss.item() == 0.0
    assert torch.isfinite(latents.grad).all()
    assert torch.isfinite(codebook.grad).all()


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_nonpositive_temperature_raises(temperature: float) -> None:
    with pytest.raises(ArcvqError, match="temperature must be positive"):
        entropy_statistics(torch.ones(3, 2), torch.ones(2, 2), temperature)


def test_unknown_metric_raises() -> None:
    with pytest.raises(ArcvqError, match="unknown metric 'l2'"):
        entropy_statistics(torch.ones(3, 2), torch.ones(2, 2), metric="l2")


def sign_codes(channels: int) -> torch.Tensor:
    return 2.0 * lattice_digits((2,) * channels).to(torch.float64) - 1


@pytest.mark.parametrize("channels", [1, 2, 5, 8])
@pytest.mark.parametrize("temperature", [0.01, 0.7, 3.0])
@pytest.mark.parametrize("masked", [False, True])
def test_sign_statistics_equal_those_of_all_codes(channels: int, temperature: float, masked: bool) -> None:
    latents = torch.randn(23, channels, dtype=torch.float64)
    latents[0] = 0  # both signs equally likely in every channel
    valid = torch.rand(23) > 0.4 if masked else None
    found = sign_entropy_statistics(latents, temperature, valid)
    expected = entropy_statistics(latents, sign_codes(channels), temperature, "euclidean", "reference", valid)
    for ours, theirs in zip(found, expected):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_sign_gradient_equals_that_of_all_codes() -> None:
    latents = torch.randn(9, 5, dtype=torch.float64, requires_grad=True)
    valid = torch.tensor([True] * 7 + [False] * 2)
    assert torch.autograd.gradcheck(lambda z: sign_entropy_statistics(z, 0.7, valid), (latents,))
    ways = (
        sign_entropy_statistics(latents, 0.7, valid),
        entropy_statistics(latents, sign_codes(5), 0.7, "euclidean", "reference", valid),
    )
    ours, theirs = (torch.autograd.grad(entropy_loss(*sums, 7), latents)[0] for sums in ways)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_large_latents_give_one_hot_signs_and_finite_gradient() -> None:
    latents = (1e4 * torch.tensor([[1.0, -1.0, 1.0]])).requires_grad_()
    total, share = sign_entropy_statistics(latents, 0.01)
    assert total.item() == 0
    assert share.tolist() == [0, 0, 0, 0, 0, 1, 0, 0]
    entropy_loss(total, share, 1).backward()
    assert latents.grad is not None
    assert latents.grad.isfinite().all()


def test_sign_statistics_raise_on_wrong_input() -> None:
    with pytest.raises(ArcvqError, match="temperature must be positive"):
        sign_entropy_statistics(torch.ones(3, 2), 0.0)
    with pytest.raises(ArcvqError, match=r"expected latents \(N, d\), got shape \(3,\)"):
        sign_entropy_statistics(torch.ones(3))
