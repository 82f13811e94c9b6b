"""The nearest code of each latent (Eqs. 1 and 9)."""

import float64_oracles as oracle
import pytest
import torch

from arcvq import ArcvqError
from arcvq.functional import assign, chunks, unit

BACKENDS = ("reference", "chunked")
METRICS = ("cosine", "euclidean")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("tokens", "codes"),
    [(53, 7), (40, 8), (1, 9), (17, 1), (5, 100)],
    ids=["uneven", "even", "N1", "K1", "K over block"],
)
def test_tokens_equal_loop(tokens: int, codes: int, metric: str, backend: str, small_blocks: None) -> None:
    latents, codebook = torch.randn(tokens, 5), torch.randn(codes, 5) * torch.rand(codes, 1) * 3
    expected = oracle.assign(oracle.rows_of(latents), oracle.rows_of(codebook), metric)
    result = assign(latents, codebook, metric, backend)
    assert result.dtype == torch.int64
    assert result.tolist() == expected


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_tokens_of_any_dtype_equal_loop(dtype: torch.dtype, metric: str, backend: str) -> None:
    latents, codebook = torch.randn(50, 6).to(dtype), torch.randn(20, 6).to(dtype)
    expected = oracle.assign(oracle.rows_of(latents), oracle.rows_of(codebook), metric)
    assert assign(latents, codebook, metric, backend).tolist() == expected


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("metric", METRICS)
def test_ties_go_to_lowest_index(metric: str, backend: str, small_blocks: None) -> None:
    codes = torch.eye(3).repeat(20, 1)  # every direction twenty times
    latents = torch.eye(3)[torch.tensor([2, 0, 1, 1, 0, 2, 2])]
    assert assign(latents, codes, metric, backend).tolist() == [2, 0, 1, 1, 0, 2, 2]
    between = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
    assert assign(between, codes, metric, backend).tolist() == [0, 1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_repeated_codes_tie_to_lowest_index(backend: str) -> None:
    codes = torch.randn(513, 64)
    codes[512], codes[300] = codes[0], codes[7]
    tokens = assign(torch.cat([torch.randn(2000, 64), codes]), codes, backend=backend)
    assert not torch.isin(tokens, torch.tensor([300, 512])).any()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("codes", [2048, 3072, 4097, 6400])
def test_ties_across_blocks_go_to_lowest_index(codes: int, metric: str) -> None:
    codebook = torch.randn(codes, 16)
    codebook[codes // 2 :] = codebook[: codes - codes // 2].clone()
    latents = torch.randn(300, 16)
    tokens = assign(latents, codebook, metric, "chunked")
    assert tokens.max() < codes // 2 + codes % 2
    assert torch.equal(tokens, assign(latents, codebook, metric, "reference"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_zero_latent_gets_first_code(backend: str) -> None:
    assert assign(torch.zeros(2, 3), torch.randn(4, 3), "cosine", backend).tolist() == [0, 0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_zero_code_has_cosine_zero(backend: str) -> None:
    codebook = torch.tensor([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    latents = torch.tensor([[1.0, 0.1], [-1.0, 0.1]])
    assert assign(latents, codebook, "cosine", backend).tolist() == [1, 2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_cosine_tokens_do_not_depend_on_norms(backend: str) -> None:
    latents, codebook = torch.randn(200, 8), torch.randn(30, 8)
    plain = assign(latents, codebook, "cosine", backend)
    scaled = assign(
        latents * (torch.rand(200, 1) * 1e4 + 1e-4), codebook * (torch.rand(30, 1) * 1e4 + 1e-4), "cosine", backend
    )
    assert torch.equal(plain, scaled)


@pytest.mark.parametrize("backend", BACKENDS)
def test_cosine_tokens_equal_euclidean_ones_of_unit_vectors(backend: str) -> None:
    latents, codebook = torch.randn(200, 8), torch.randn(30, 8)
    assert torch.equal(
        assign(latents, codebook, "cosine", backend), assign(unit(latents), unit(codebook), "euclidean", backend)
    )


@pytest.mark.parametrize("metric", METRICS)
def test_tokens_do_not_depend_on_block_size(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    latents, codebook = torch.randn(300, 16), torch.randn(64, 16)
    whole = assign(latents, codebook, metric, "reference")
    for elements in (1, 64, 1000, 6400, 10**6):
        monkeypatch.setitem(chunks.BLOCK_ELEMENTS, "cpu", elements)
        assert torch.equal(assign(latents, codebook, metric, "chunked"), whole)


def test_no_latents_give_no_tokens() -> None:
    for backend in BACKENDS:
        assert assign(torch.zeros(0, 3), torch.randn(4, 3), backend=backend).shape == (0,)


def test_tokens_have_no_gradient() -> None:
    latents, codebook = torch.randn(5, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    assert not assign(latents, codebook).requires_grad


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metric": "manhattan"}, "unknown metric 'manhattan': expected one of cosine, euclidean"),
        ({"backend": "cuda"}, "unknown backend 'cuda': expected one of auto, reference, chunked, triton"),
        ({"codebook": torch.zeros(4, 5)}, "latents are 3 wide but the codebook's codes are 5 wide"),
        ({"codebook": torch.zeros(3)}, "expected latents (N, D) and codebook (K, D)"),
    ],
)
def test_wrong_arguments_raise_with_reason(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ArcvqError) as raised:
        assign(**{"latents": torch.ones(5, 3), "codebook": torch.ones(4, 3), **arguments})
    assert message in str(raised.value)
