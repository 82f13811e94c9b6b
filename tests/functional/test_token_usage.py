"""Counts, sums and perplexity of tokens."""

import float64_oracles as oracle
import pytest
import torch

from arcvq import ArcvqError
from arcvq.functional import perplexity, token_counts, token_sums


def test_counts_equal_loop() -> None:
    tokens = torch.randint(0, 9, (4, 5, 6))
    flat = tokens.flatten().tolist()
    assert token_counts(tokens, 9).tolist() == [flat.count(code) for code in range(9)]


def test_padding_is_not_counted() -> None:
    assert token_counts(torch.tensor([-1, 0, 2, 2, -1]), 4).tolist() == [1, 0, 2, 0]


def test_no_tokens_give_zero_counts_and_perplexity() -> None:
    counts = token_counts(torch.zeros(0, dtype=torch.int64), 3)
    assert counts.tolist() == [0, 0, 0]
    assert perplexity(counts).item() == 0.0


def test_perplexity_of_uniform_usage_is_codebook_size() -> None:
    assert perplexity(torch.full((512,), 7)).item() == pytest.approx(512, rel=1e-5)


def test_perplexity_of_single_code_is_one() -> None:
    assert perplexity(torch.tensor([0, 0, 900, 0])).item() == 1.0


def test_perplexity_equals_loop() -> None:
    counts = torch.randint(0, 50, (100,))
    counts[::7] = 0
    assert perplexity(counts).item() == pytest.approx(oracle.perplexity(counts.tolist()), rel=1e-5)


def test_sums_raise_without_token_for_each_latent() -> None:
    with pytest.raises(ArcvqError, match=r"\(3, 2\) and \(4,\)"):
        token_sums(torch.zeros(3, 2), torch.zeros(4, dtype=torch.int64), 5)
