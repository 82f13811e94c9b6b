"""Lattice codes: tokens and codes map one to one, and every level can be reached."""

import pytest
import torch

from arcvq.functional import fsq_bound, fsq_codes, lattice_digits, lattice_tokens

LEVELS = [(8, 8, 8), (8, 5, 5, 5), (7,), (2, 2, 2, 2), (3, 2, 5)]


@pytest.mark.parametrize("levels", LEVELS)
def test_tokens_and_digits_are_inverse(levels: tuple[int, ...]) -> None:
    digits = lattice_digits(levels)
    size = torch.tensor(levels).prod().item()
    assert digits.shape == (size, len(levels))
    assert digits.unique(dim=0).shape == digits.shape
    assert torch.equal(digits.amin(dim=0), torch.zeros(len(levels), dtype=torch.int64))
    assert digits.amax(dim=0).tolist() == [level - 1 for level in levels]
    assert torch.equal(lattice_tokens(digits, levels), torch.arange(size))


@pytest.mark.parametrize("levels", LEVELS)
def test_fsq_codes_lie_in_unit_interval_and_include_zero(levels: tuple[int, ...]) -> None:
    codes = fsq_codes(levels)
    assert codes.dtype == torch.float32
    assert codes.unique(dim=0).shape == codes.shape
    assert codes.abs().max() == 1
    assert (codes == 0).any(dim=0).all()


@pytest.mark.parametrize("level", range(2, 10))
def test_fsq_bound_reaches_every_level_and_no_other(level: int) -> None:
    z = torch.linspace(-20, 20, 4001, dtype=torch.float64).unsqueeze(1)
    bounded = fsq_bound(z, (level,))
    assert bounded.round().unique().tolist() == list(range(-(level // 2), (level + 1) // 2))
    assert (bounded.diff(dim=0) >= 0).all()
    if level > 2:
        assert fsq_bound(torch.zeros(1, 1, dtype=torch.float64), (level,)).abs().item() < 1e-12


def test_fsq_bound_gradient_agrees_with_finite_differences() -> None:
    z = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: fsq_bound(x, (8, 5, 2)), z)
