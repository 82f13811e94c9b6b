"""The adversarial losses against loops over Python floats, closed forms and finite differences."""

import math
from statistics import fmean
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from arcvq import ArcvqError
from arcvq.functional import (
    adaptive_weight,
    discriminator_loss,
    generator_loss,
    lecam,
    r1_penalty,
    ramp,
)


def softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


@pytest.fixture
def logits() -> tuple[Tensor, Tensor]:
    """Logits of real images and of reconstructions (3, 1, 4, 5), on both sides of every kink."""
    real, fake = 2 * torch.randn(2, 3, 1, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return real, fake


def test_losses_equal_loops(logits: tuple[Tensor, Tensor]) -> None:
    real, fake = (each.flatten().tolist() for each in logits)
    hinge = 0.5 * (fmean(max(0.0, 1 - x) for x in real) + fmean(max(0.0, 1 + x) for x in fake))
    logistic = fmean(softplus(-x) for x in real) + fmean(softplus(x) for x in fake)
    assert discriminator_loss(*logits, "hinge").item() == pytest.approx(hinge, rel=1e-14)
    assert discriminator_loss(*logits, "logistic").item() == pytest.approx(logistic, rel=1e-14)
    assert generator_loss(logits[1], "hinge").item() == pytest.approx(-fmean(fake), rel=1e-14)
    assert generator_loss(logits[1], "logistic").item() == pytest.approx(fmean(softplus(-x) for x in fake), rel=1e-14)


def test_unknown_kind_is_refused(logits: tuple[Tensor, Tensor]) -> None:
    message = "unknown adversarial loss 'wgan': expected one of hinge, logistic"
    with pytest.raises(ArcvqError, match=message):
        discriminator_loss(*logits, "wgan")  # type: ignore[arg-type]
    with pytest.raises(ArcvqError, match=message):
        generator_loss(logits[1], "wgan")  # type: ignore[arg-type]


def test_lecam_equals_loop(logits: tuple[Tensor, Tensor]) -> None:
    real, fake = (each.flatten().tolist() for each in logits)
    expected = fmean(max(0.0, x + 0.3) ** 2 for x in real) + fmean(max(0.0, 0.7 - x) ** 2 for x in fake)
    averages = torch.tensor([0.7, -0.3], dtype=torch.float64)
    assert lecam(*logits, *averages).item() == pytest.approx(expected, rel=1e-14)


def test_undecided_discriminator_has_the_loss_of_a_coin() -> None:
    zero = torch.zeros(2, 1)
    assert discriminator_loss(zero, zero, "hinge").item() == 1.0
    assert discriminator_loss(zero, zero, "logistic").item() == pytest.approx(2 * math.log(2))
    assert lecam(zero, zero, torch.zeros(()), torch.zeros(())).item() == 0.0


def test_lecam_moves_only_logits() -> None:
    averages = torch.tensor([1.0, -1.0], requires_grad=True)
    real, fake = torch.zeros(2, 4, requires_grad=True)[:]
    value = lecam(real, fake, *averages)
    assert torch.autograd.grad(value, averages, retain_graph=True, allow_unused=True) == (None,)
    slopes = torch.autograd.grad(value, (real, fake))
    assert torch.equal(torch.stack(slopes), torch.tensor([[0.5] * 4, [-0.5] * 4]))


@pytest.mark.parametrize("kind", ["hinge", "logistic"])
def test_gradients_agree_with_finite_differences(kind: Any, logits: tuple[Tensor, Tensor]) -> None:
    real, fake = (each.clone().requires_grad_() for each in logits)
    averages = torch.tensor([0.7, -0.3], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x, y: discriminator_loss(x, y, kind), (real, fake))
    assert torch.autograd.gradcheck(lambda x: generator_loss(x, kind), (fake,))
    assert torch.autograd.gradcheck(lambda x, y: lecam(x, y, *averages), (real, fake))


def test_r1_of_a_linear_discriminator_is_the_square_of_its_weights() -> None:
    linear = nn.Linear(12, 1).double()
    images = torch.randn(5, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    penalty = r1_penalty(linear(images.flatten(1)), images)
    expected = linear.weight.square().sum()
    assert penalty.item() == pytest.approx(expected.item(), rel=1e-12)
    penalty.backward()
    torch.testing.assert_close(linear.weight.grad, 2 * linear.weight.detach())


def test_r1_has_the_slope_of_its_value_in_a_patch_discriminator() -> None:
    """Several logits per image, and a gradient of a gradient."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.Softplus(), nn.Conv2d(4, 1, 2)).double()
    images = torch.randn(3, 1, 8, 8, dtype=torch.float64, requires_grad=True)
    weight = next(network.parameters())

    def penalty() -> Tensor:
        return r1_penalty(network(images), images)

    (gradient,) = torch.autograd.grad(penalty(), weight)
    direction = torch.randn_like(weight)
    values = []
    for step in (1e-6, -2e-6):
        with torch.no_grad():
            weight += step * direction
        values.append(penalty().item())
    assert (gradient * direction).sum().item() == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-6)


def test_equal_gradients_have_weight_one_and_a_ratio_is_bounded() -> None:
    def weight(*norms: float) -> float:
        return adaptive_weight(*torch.tensor(norms, dtype=torch.float64)).item()

    assert weight(3.0, 3.0) == pytest.approx(1.0, abs=1e-4)
    assert weight(2.0, 0.5) == pytest.approx(2.0 / 0.5001, rel=1e-12)
    assert weight(1.0, 0.0) == pytest.approx(1e4, rel=1e-12)
    assert weight(5.0, 0.0) == 1e4
    assert weight(0.0, 0.0) == 0.0
    norm = torch.ones((), requires_grad=True)
    assert not adaptive_weight(norm, norm).requires_grad


def test_ramp_is_a_line_or_a_jump() -> None:
    steps = torch.tensor([0, 9, 10, 11, 12, 14, 99])
    assert ramp(steps, 10, 4).tolist() == [0.0, 0.0, 0.0, 0.25, 0.5, 1.0, 1.0]
    assert ramp(steps, 10).tolist() == [0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert ramp(steps, 0).tolist() == [1.0] * 7


def test_ramp_reads_nothing_on_the_host(as_if_captured: Any) -> None:
    step = torch.tensor(11)
    with as_if_captured():
        values = [ramp(step, 10, 4), ramp(step, 12)]
    assert torch.stack(values).tolist() == [0.25, 0.0]


def test_half_precision_is_computed_in_float32() -> None:
    half = torch.full((1000, 1), 0.0078125 + 1, dtype=torch.bfloat16)  # 1 + 2⁻⁷
    average = torch.zeros(())
    values = [generator_loss(half), discriminator_loss(-half, half), lecam(half, half, average, average)]
    assert [value.dtype for value in values] == [torch.float32] * 3
    assert values[0].item() == pytest.approx(-1.0078125, abs=1e-6)
    assert values[1].item() == pytest.approx(2.0078125, abs=1e-6)
    assert values[2].item() == pytest.approx(1.0078125**2, abs=1e-6)


@pytest.mark.parametrize("kind", ["hinge", "logistic"])
def test_a_process_without_images_adds_nothing(kind: Any) -> None:
    empty, average = torch.zeros(0, 1, 4, 4), torch.ones(())
    values = [
        discriminator_loss(empty, empty, kind),
        generator_loss(empty, kind),
        lecam(empty, empty, average, average),
    ]
    assert [value.item() for value in values] == [0.0] * 3
