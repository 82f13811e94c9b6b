"""The bottlenecks of the two VAEs: samples, losses, and no tokens."""

import pytest
import torch

from arcvq import ArcvqError
from arcvq.functional import gaussian_kl, sample_vmf, unit, vmf_kl
from arcvq.quantizers import Continuous, Gaussian, VonMisesFisher


@pytest.mark.parametrize("cls", [Gaussian, VonMisesFisher])
def test_image_vector_depends_on_all_positions(cls: type[Continuous]) -> None:
    quantizer = cls(4, latent_dim=3, positions=6).eval()
    latents = torch.randn(2, 4, 2, 3)
    before = quantizer(latents).quantized
    latents[0, :, 1, 2] += 1
    after = quantizer(latents).quantized
    assert (after[0] != before[0]).all(dim=0).any(dim=0).any()
    assert (after[0, :, 0, 0] != before[0, :, 0, 0]).any()
    assert torch.equal(after[1], before[1])
    each = cls(4, latent_dim=3).eval()
    before = each(latents).quantized
    latents[0, :, 1, 2] += 1
    assert torch.equal(each(latents).quantized[0, :, 0], before[0, :, 0])


def test_gaussian_samples_have_posterior_mean_and_variance() -> None:
    quantizer = Gaussian(4, latent_dim=2)
    parameters = torch.tensor([[1.0, -2.0, 0.0, -3.0]]).expand(20_000, 4)
    z, divergence = quantizer.posterior(parameters, sample=True)
    torch.testing.assert_close(z.mean(dim=0), torch.tensor([1.0, -2.0]), rtol=0, atol=0.03)
    torch.testing.assert_close(z.var(dim=0), torch.tensor([0.0, -3.0]).exp(), rtol=0.05, atol=0)
    torch.testing.assert_close(divergence[0], gaussian_kl(parameters[0, :2], parameters[0, 2:]))
    assert torch.equal(quantizer.posterior(parameters, sample=False)[0], parameters[:, :2])


def test_gaussian_is_finite_for_extreme_parameters() -> None:
    parameters = torch.tensor([[1.0, 2.0, 500.0, -500.0]], requires_grad=True)
    z, divergence = Gaussian(4, latent_dim=2).posterior(parameters, sample=True)
    (z.sum() + divergence.sum()).backward()
    assert z.isfinite().all()
    assert divergence.isfinite().all()
    assert parameters.grad is not None
    assert parameters.grad.isfinite().all()


def test_vmf_stays_on_sphere_in_training_and_evaluation() -> None:
    quantizer = VonMisesFisher(4, latent_dim=65)
    parameters = torch.randn(50, 66)
    for sample in (True, False):
        z, divergence = quantizer.posterior(parameters, sample)
        torch.testing.assert_close(z.norm(dim=1), torch.ones(50))
    kappa = 1 + torch.nn.functional.softplus(parameters[:, -1])
    torch.testing.assert_close(divergence, vmf_kl(kappa, 65).float())
    assert (divergence > 0).all(), "a concentration of at least 1 never collapses onto the prior"
    torch.testing.assert_close(z, parameters[:, :-1] / parameters[:, :-1].norm(dim=1, keepdim=True))


def test_vmf_gradient_follows_gradient_option() -> None:
    parameters = torch.randn(50, 9, requires_grad=True)

    def slope(gradient: str, layer: bool) -> torch.Tensor:
        quantizer = VonMisesFisher(4, latent_dim=8, gradient=gradient)
        kappa = 1 + torch.nn.functional.softplus(parameters[:, -1])
        torch.manual_seed(2)
        if layer:
            z, _ = quantizer.posterior(parameters, sample=True)
        else:
            z = sample_vmf(unit(parameters[:, :-1]), kappa, implicit=gradient == "implicit")
        return torch.autograd.grad(z[:, 0].sum(), parameters)[0]

    for gradient in ("explicit", "implicit"):
        torch.testing.assert_close(slope(gradient, layer=True), slope(gradient, layer=False))
    assert (slope("explicit", layer=True) - slope("implicit", layer=True)).abs().max() > 1e-4


@pytest.mark.parametrize("cls", [Gaussian, VonMisesFisher])
def test_loss_is_divergence_per_element_and_rate_in_nats(cls: type[Continuous]) -> None:
    quantizer = cls(4, latent_dim=3, positions=6, elements=16, weight=2.0)
    latents = torch.randn(5, 4, 2, 3)
    out = quantizer(latents)
    with torch.no_grad():
        parameters = quantizer.to_posterior(
            latents.movedim(1, -1).reshape(5, 24)
        )  # one vector for an image's six positions
        _, divergence = quantizer.posterior(parameters, sample=False)
    assert divergence.shape == (5,)
    assert set(out.losses) == {"divergence"}
    assert out.losses["divergence"].item() == pytest.approx(2 * divergence.mean().item() / (6 * 16), rel=1e-5)
    assert out.stats["vector_rate"].item() == pytest.approx(divergence.mean().item(), rel=1e-5)


@pytest.mark.parametrize("cls", [Gaussian, VonMisesFisher])
def test_sample_option_samples_in_evaluation(cls: type[Continuous]) -> None:
    quantizer, latents = cls(4, latent_dim=3, sample=True).eval(), torch.randn(5, 4)
    assert not torch.equal(quantizer(latents).quantized, quantizer(latents).quantized)


@pytest.mark.parametrize(
    ("cls", "options", "message"),
    [
        (Gaussian, {"codebook_size": 8}, "codebook_size: a continuous bottleneck has no codes; leave it out"),
        (Gaussian, {"heads": 2}, "heads: a continuous bottleneck has no codes"),
        (Gaussian, {"code_dim": 3}, "(latent_dim is its width)"),
        (Gaussian, {"latent_dim": 0}, "latent_dim must be at least 1, got 0"),
        (Gaussian, {"weight": -1}, "weight must not be negative, got -1.0"),
        (VonMisesFisher, {"latent_dim": 2}, "latent_dim must be at least 3 for a sphere, got 2"),
        (VonMisesFisher, {"kappa_floor": 0}, "kappa_floor must be positive, got 0.0"),
        (VonMisesFisher, {"gradient": "none"}, "gradient: expected one of explicit, implicit, got 'none'"),
    ],
)
def test_wrong_options_raise_with_reason(cls: type[Continuous], options: dict[str, object], message: str) -> None:
    with pytest.raises(ArcvqError) as raised:
        cls(4, **options)
    assert message in str(raised.value)


def test_decode_raises() -> None:
    with pytest.raises(ArcvqError, match="Gaussian is continuous"):
        Gaussian(4).decode(torch.zeros(2, 3, dtype=torch.int64))


def test_other_image_size_raises_with_image_vectors() -> None:
    with pytest.raises(ArcvqError, match="fits images of one size only"):
        Gaussian(4, positions=6)(torch.randn(1, 4, 3, 3))
