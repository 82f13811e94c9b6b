"""Each custom operator passes PyTorch's opcheck: schema, fake tensors, autograd registration, compiled dispatch."""

import pytest
import torch
from torch.library import opcheck

import arcvq.functional  # noqa: F401  registers the operators

OPERATORS = torch.ops.arcvq


def unit_rows(count: int, learn: bool = False) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(count, 4), dim=1).requires_grad_(learn)


def mask(count: int) -> torch.Tensor:
    return torch.arange(count) % 3 > 0


@pytest.mark.parametrize("learn", [False, True])
def test_matmul(learn: bool) -> None:
    opcheck(OPERATORS.matmul.default, (unit_rows(6, learn), torch.randn(4, 5, requires_grad=learn)))


@pytest.mark.parametrize("bias", [False, True])
def test_assign_chunked(bias: bool, small_blocks: None) -> None:
    opcheck(OPERATORS.assign.default, (unit_rows(30), unit_rows(5), torch.rand(5) if bias else None))


@pytest.mark.parametrize("learn", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_arc_statistics_chunked(masked: bool, learn: bool, small_blocks: None) -> None:
    valid = mask(30) if masked else None
    opcheck(OPERATORS.arc_statistics.default, (unit_rows(30, learn), unit_rows(5, learn), valid, 10.0, 3))


@pytest.mark.parametrize("codes_learn", [False, True])
def test_arc_statistics_chunked_backward(codes_learn: bool, small_blocks: None) -> None:
    latents, codes = unit_rows(30), unit_rows(5)
    _, top_tokens, negatives = OPERATORS.arc_statistics(latents, codes, mask(30), 10.0, 3)
    gradients = torch.randn(5, 3), torch.randn(5)
    arguments = (latents, codes, mask(30), top_tokens, negatives, *gradients, 10.0, codes_learn)
    opcheck(OPERATORS.arc_statistics_backward.default, arguments)


@pytest.mark.parametrize("learn", [False, True])
def test_entropy_chunked(learn: bool, small_blocks: None) -> None:
    arguments = (unit_rows(30, learn), unit_rows(5, learn), torch.rand(5, requires_grad=learn), torch.ones(30), 0.5)
    opcheck(OPERATORS.entropy_chunked.default, arguments)


def test_entropy_chunked_backward(small_blocks: None) -> None:
    arguments = (unit_rows(30), unit_rows(5), torch.rand(5), torch.ones(30), 0.5, torch.tensor(1.0), torch.randn(5))
    opcheck(OPERATORS.entropy_chunked_backward.default, arguments)
