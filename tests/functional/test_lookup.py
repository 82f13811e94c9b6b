"""Lookup of tokens in the codebook, and its gradient."""

import pytest
import torch

from arcvq import ArcvqError
from arcvq.functional import lookup


def test_lookup_gives_code_of_each_token() -> None:
    codebook, tokens = torch.randn(7, 3), torch.randint(0, 7, (2, 4, 5))
    assert torch.equal(lookup(codebook, tokens), codebook[tokens])


def test_gradient_of_code_is_sum_over_its_tokens() -> None:
    codebook, tokens = torch.randn(7, 3, requires_grad=True), torch.randint(0, 7, (30,))
    upstream = torch.randn(30, 3)
    lookup(codebook, tokens).backward(upstream)
    for code in range(7):
        torch.testing.assert_close(codebook.grad[code], upstream[tokens == code].sum(0))


def test_first_and_second_gradients_agree_with_finite_differences() -> None:
    tokens = torch.tensor([0, 2, 2, 3])
    codebook = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda c: lookup(c, tokens), codebook)
    assert torch.autograd.gradgradcheck(lambda c: lookup(c, tokens).pow(2), codebook)


def test_triton_backend_raises_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ArcvqError, match="needs CUDA tensors"):
        lookup(torch.zeros(4, 2), torch.zeros(3, dtype=torch.int64), "triton")
