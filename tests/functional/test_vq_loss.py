"""The codebook and commitment terms of Eq. 3."""

import float64_oracles as oracle
import pytest
import torch

from arcvq.functional import vq_loss


def test_terms_equal_hand_computed_values() -> None:
    """E = {−1, 1} and z = 0.2: the code is +1, its term 0.64, the total (1 + β)·0.64."""
    terms = vq_loss(torch.tensor([[0.2]], dtype=torch.float64), torch.tensor([[1.0]], dtype=torch.float64))
    assert terms["codebook"].item() == pytest.approx(0.64, abs=1e-15)
    assert terms["commitment"].item() == pytest.approx(0.25 * 0.64, abs=1e-15)


@pytest.mark.parametrize("masked", [False, True])
def test_terms_equal_loop(masked: bool) -> None:
    latents, codes = torch.randn(30, 5), torch.randn(30, 5)
    valid = torch.rand(30) > 0.5 if masked else None
    terms = vq_loss(latents, codes, codebook_weight=2.0, commitment_weight=0.3, valid=valid)
    mean = oracle.mean_square(oracle.rows_of(latents), oracle.rows_of(codes), valid.tolist() if masked else None)
    assert terms["codebook"].item() == pytest.approx(2.0 * mean, rel=1e-6)
    assert terms["commitment"].item() == pytest.approx(0.3 * mean, rel=1e-6)


def test_terms_are_zero_for_latents_equal_to_codes() -> None:
    latents = torch.randn(7, 3)
    assert [term.item() for term in vq_loss(latents, latents.clone()).values()] == [0.0, 0.0]


def test_codebook_term_moves_only_codes_and_commitment_only_latents() -> None:
    latents = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    codes = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    terms = vq_loss(latents, codes)
    slope = 2 * (codes - latents).detach() / latents.numel()
    assert torch.autograd.grad(terms["codebook"], latents, retain_graph=True, allow_unused=True) == (None,)
    assert torch.autograd.grad(terms["commitment"], codes, retain_graph=True, allow_unused=True) == (None,)
    torch.testing.assert_close(torch.autograd.grad(terms["codebook"], codes)[0], slope)
    torch.testing.assert_close(torch.autograd.grad(terms["commitment"], latents)[0], -0.25 * slope)


def test_gradients_agree_with_finite_differences() -> None:
    latents = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    codes = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    fixed_latents, fixed_codes = latents.detach(), codes.detach()
    valid = torch.tensor([True, True, False, True, False, True])
    assert torch.autograd.gradcheck(lambda e: vq_loss(fixed_latents, e, valid=valid)["codebook"], (codes,))
    assert torch.autograd.gradcheck(lambda z: vq_loss(z, fixed_codes, valid=valid)["commitment"], (latents,))


def test_legacy_swaps_weights() -> None:
    latents, codes = torch.randn(8, 3), torch.randn(8, 3)
    standard, legacy = vq_loss(latents, codes), vq_loss(latents, codes, legacy=True)
    assert torch.equal(legacy["codebook"], standard["commitment"])
    assert torch.equal(legacy["commitment"], standard["codebook"])


def test_legacy_equals_standard_when_beta_is_one() -> None:
    latents, codes = torch.randn(8, 3), torch.randn(8, 3)
    standard = vq_loss(latents, codes, commitment_weight=1.0)
    legacy = vq_loss(latents, codes, commitment_weight=1.0, legacy=True)
    for name in standard:
        assert torch.equal(standard[name], legacy[name])


def test_masked_rows_get_no_gradient() -> None:
    latents, codes = torch.randn(5, 3, requires_grad=True), torch.randn(5, 3, requires_grad=True)
    valid = torch.tensor([True, False, True, False, True])
    sum(vq_loss(latents, codes, valid=valid).values()).backward()
    assert torch.equal(latents.grad[~valid], torch.zeros(2, 3))
    assert torch.equal(codes.grad[~valid], torch.zeros(2, 3))
    assert (latents.grad[valid] != 0).all()


@pytest.mark.parametrize("rows", [0, 4])
def test_terms_are_zero_without_valid_rows(rows: int) -> None:
    latents, codes = torch.randn(rows, 3), torch.randn(rows, 3)
    terms = vq_loss(latents, codes, valid=torch.zeros(rows, dtype=torch.bool))
    assert [term.item() for term in terms.values()] == [0.0, 0.0]
    assert vq_loss(torch.zeros(0, 3), torch.zeros(0, 3))["codebook"].item() == 0.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_are_compared_in_float32(dtype: torch.dtype) -> None:
    latents, codes = (100 * torch.randn(20, 3)).to(dtype), torch.randn(20, 3)
    terms, expected = vq_loss(latents, codes), vq_loss(latents.float(), codes)
    for name, term in terms.items():
        assert term.dtype == torch.float32
        assert torch.equal(term, expected[name])
