"""How often each code is taken, and the perplexity of that."""

import float64_oracles as oracle
import pytest
import torch

from arcvq import ArcvqError
from arcvq.functional import perplexity, token_counts, token_sums


def test_counts_are_those_of_a_loop() -> None:
    tokens = torch.randint(0, 9, (4, 5, 6))
    flat = tokens.flatten().tolist()
    assert token_counts(tokens, 9).tolist() == [flat.count(code) for code in range(9)]


def test_padding_falls_on_no_code() -> None:
    assert token_counts(torch.tensor([-1, 0, 2, 2, -1]), 4).tolist() == [1, 0, 2, 0]


def test_no_tokens_count_nothing() -> None:
    counts = token_counts(torch.zeros(0, dtype=torch.int64), 3)
    assert counts.tolist() == [0, 0, 0]
    assert perplexity(counts).item() == 0.0


def test_even_use_has_a_perplexity_of_the_codebook_size() -> None:
    assert perplexity(torch.full((512,), 7)).item() == pytest.approx(512, rel=1e-5)


def test_one_code_for_everything_has_a_perplexity_of_one() -> None:
    assert perplexity(torch.tensor([0, 0, 900, 0])).item() == 1.0


def test_perplexity_equals_the_loop() -> None:
    counts = torch.randint(0, 50, (100,))
    counts[::7] = 0
    assert perplexity(counts).item() == pytest.approx(oracle.perplexity(counts.tolist()), rel=1e-5)


def test_sums_want_a_token_for_each_latent() -> None:
    with pytest.raises(ArcvqError, match=r"\(3, 2\) and \(4,\)"):
        token_sums(torch.zeros(3, 2), torch.zeros(4, dtype=torch.int64), 5)
