"""The codes of tokens, and the gradient that comes back."""

import pytest
import torch

from arcvq import ArcvqError
from arcvq.functional import lookup


def test_rows_of_the_codebook_in_the_tokens_shape() -> None:
    codebook, tokens = torch.randn(7, 3), torch.randint(0, 7, (2, 4, 5))
    assert torch.equal(lookup(codebook, tokens), codebook[tokens])


def test_the_gradient_of_a_code_is_the_sum_over_its_tokens() -> None:
    codebook, tokens = torch.randn(7, 3, requires_grad=True), torch.randint(0, 7, (30,))
    upstream = torch.randn(30, 3)
    lookup(codebook, tokens).backward(upstream)
    for code in range(7):
        torch.testing.assert_close(codebook.grad[code], upstream[tokens == code].sum(0))


def test_gradients_of_any_order() -> None:
    tokens = torch.tensor([0, 2, 2, 3])
    codebook = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda c: lookup(c, tokens), codebook)
    assert torch.autograd.gradgradcheck(lambda c: lookup(c, tokens).pow(2), codebook)


def test_where_the_kernels_do_not_run_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ArcvqError, match="needs CUDA tensors"):
        lookup(torch.zeros(4, 2), torch.zeros(3, dtype=torch.int64), "triton")
