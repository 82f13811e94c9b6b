"""The logits of SQ-VAE and the KL divergence of a VAE, against direct formulas."""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from arcvq.functional import code_logits, gaussian_kl, negative_entropy

PRECISIONS = {"everyone's": (1, 1), "a token's": (7, 1), "an element's": (7, 3)}


def expected_logits(latents: Tensor, codebook: Tensor, precision: Tensor) -> Tensor:
    difference = latents.unsqueeze(1) - codebook  # (N, K, D)
    return -0.5 * (precision.expand_as(latents).unsqueeze(1) * difference.square()).sum(dim=2)


@pytest.mark.parametrize("shape", PRECISIONS.values(), ids=PRECISIONS.keys())
def test_code_logits_equal_weighted_distances_up_to_constant(shape: tuple[int, int]) -> None:
    latents, codebook = torch.randn(7, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    precision = torch.rand(shape, dtype=torch.float64) + 0.1
    ours, direct = (f(latents, codebook, precision) for f in (code_logits, expected_logits))
    torch.testing.assert_close(ours.log_softmax(dim=1), direct.log_softmax(dim=1))


@pytest.mark.parametrize("shape", PRECISIONS.values(), ids=PRECISIONS.keys())
def test_code_logits_gradient_agrees_with_finite_differences(shape: tuple[int, int]) -> None:
    tensors = [torch.rand(size, dtype=torch.float64, requires_grad=True) for size in ((7, 3), (5, 3), shape)]
    assert torch.autograd.gradcheck(code_logits, tensors)


def test_negative_entropy_is_minus_log_k_when_uniform_and_zero_when_one_hot() -> None:
    latents, codebook = torch.randn(9, 4), torch.randn(8, 4)
    vague, sure = (code_logits(latents, codebook, torch.tensor([[1 / s]])) for s in (1e8, 1e-8))
    torch.testing.assert_close(negative_entropy(vague), torch.full((9,), -math.log(8)))
    torch.testing.assert_close(negative_entropy(sure), torch.zeros(9))
    assert torch.equal(sure.argmax(dim=1), torch.cdist(latents, codebook).argmin(dim=1))


def test_gaussian_kl_equals_torch_and_is_zero_for_prior() -> None:
    mean, log_variance = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    prior = Normal(torch.zeros(1, dtype=torch.float64), 1.0)
    expected = kl_divergence(Normal(mean, (0.5 * log_variance).exp()), prior).sum(dim=1)
    torch.testing.assert_close(gaussian_kl(mean, log_variance), expected)
    assert gaussian_kl(torch.zeros(2, 3), torch.zeros(2, 3)).tolist() == [0.0, 0.0]


def test_elbo_lies_below_importance_weighted_bound() -> None:
    """z ~ N(0, 1), x | z ~ N(z, 1), so x ~ N(0, 2); a posterior that is not the true one."""
    x = torch.tensor(0.8, dtype=torch.float64)
    mean, log_variance = torch.tensor([[0.1]], dtype=torch.float64), torch.tensor([[-0.2]], dtype=torch.float64)
    posterior = Normal(mean, (0.5 * log_variance).exp())
    z = posterior.sample((4000, 20)).squeeze()
    joint = Normal(z, 1.0).log_prob(x)
    elbo = (joint.mean() - gaussian_kl(mean, log_variance)).item()
    weights = joint + Normal(0.0, 1.0).log_prob(z) - posterior.log_prob(z.unsqueeze(-1)).squeeze()
    importance_weighted = (weights.logsumexp(dim=1) - math.log(20)).mean().item()
    evidence = Normal(0.0, math.sqrt(2)).log_prob(x).item()
    assert elbo < importance_weighted < evidence + 1e-3
    assert evidence - elbo > 0.01
