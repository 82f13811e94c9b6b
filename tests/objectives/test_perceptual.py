"""LPIPS as a loss: the metric's value, and a gradient that can be trained on."""

import copy

import pytest
import torch
from torch import Tensor

from arcvq import ArcvqError
from arcvq.metrics import Lpips, lpips_distance
from arcvq.objectives import PerceptualLoss


@pytest.fixture
def pair() -> tuple[Tensor, Tensor]:
    """Reconstructions and images (2, 3, 32, 24) in [-1, 1]."""
    x, y = torch.rand(2, 2, 3, 32, 24, generator=torch.Generator().manual_seed(1)) * 2 - 1
    return x, y


def test_value_is_that_of_the_metric(random_vgg: Lpips, pair: tuple[Tensor, Tensor]) -> None:
    loss = PerceptualLoss(random_vgg)(*pair)
    torch.testing.assert_close(
        loss, lpips_distance(*((each + 1) / 2 for each in pair), random_vgg), rtol=1e-5, atol=1e-7
    )
    grey = [each[:, :1] for each in pair]
    expected = lpips_distance(*((each + 1) / 2 for each in grey), random_vgg)
    torch.testing.assert_close(PerceptualLoss(random_vgg)(*grey), expected, rtol=1e-5, atol=1e-7)


def test_gradient_is_the_slope_of_the_value(random_vgg: Lpips, pair: tuple[Tensor, Tensor]) -> None:
    loss = PerceptualLoss(copy.deepcopy(random_vgg).double())
    x, y = (each[:1].double() for each in pair)
    x.requires_grad_()
    loss(x, y).sum().backward()
    assert x.grad is not None
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    with torch.no_grad():
        above, below = (loss(x + step * direction, y).sum() for step in (1e-6, -1e-6))
    assert float((x.grad * direction).sum()) == pytest.approx(float(above - below) / 2e-6, rel=1e-4)
    assert all(parameter.grad is None for parameter in loss.parameters())


def test_bfloat16_autocast_keeps_value_and_gradient(random_vgg: Lpips, pair: tuple[Tensor, Tensor]) -> None:
    loss = PerceptualLoss(random_vgg)
    gradients, values = [], []
    for enabled in (False, True):
        x = pair[0].clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            value = loss(x, pair[1])
        value.sum().backward()
        assert value.dtype == torch.float32
        gradients.append(x.grad.flatten())  # type: ignore[union-attr]
        values.append(value)
    torch.testing.assert_close(values[1], values[0], rtol=0.05, atol=0.0)
    assert torch.cosine_similarity(*gradients, dim=0) > 0.9


def test_features_that_are_all_zero_have_a_finite_gradient(random_vgg: Lpips) -> None:
    silent = copy.deepcopy(random_vgg)
    torch.nn.init.zeros_(silent.net[0].weight)  # type: ignore[arg-type]
    torch.nn.init.constant_(silent.net[0].bias, -1.0)  # type: ignore[arg-type]
    x = torch.zeros(1, 3, 32, 32, requires_grad=True)
    PerceptualLoss(silent)(x, torch.ones(1, 3, 32, 32)).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_network_stays_frozen_and_in_evaluation(random_vgg: Lpips) -> None:
    loss = PerceptualLoss(copy.deepcopy(random_vgg).train().requires_grad_(True)).train()
    assert not any(module.training for module in loss.network.modules())
    assert not any(parameter.requires_grad for parameter in loss.parameters())


def test_images_below_the_smallest_size_are_refused(random_vgg: Lpips) -> None:
    with pytest.raises(ArcvqError, match="16 pixels"):
        PerceptualLoss(random_vgg)(torch.zeros(1, 3, 8, 8), torch.zeros(1, 3, 8, 8))
