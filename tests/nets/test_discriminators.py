"""Every discriminator: logits of real images and reconstructions, a second gradient, no state. And what each kind is made of."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from arcvq import ArcvqError
from arcvq.functional import discriminator_loss, r1_penalty
from arcvq.nets import DISCRIMINATORS, PatchConfig, PatchDiscriminator, StyleGANConfig, StyleGANDiscriminator
from arcvq.nets.discriminators import Blur, ScaledConv2d, ScaledLinear, activate, batch_deviation

SMALL: dict[str, Any] = {
    "patch": PatchConfig(width=8, layers=2),
    "patch, group norm": PatchConfig(width=8, layers=2, norm="group", groups=4),
    "patch, no norm, blur": PatchConfig(width=8, layers=2, norm="none", blur=True),
    "stylegan": StyleGANConfig(width=8, max_width=16, levels=3),
}


def make(name: str, channels: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return DISCRIMINATORS.build(SMALL[name], channels)


def images_of(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1)) * 2 - 1


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def test_every_kind_is_tested() -> None:
    assert {DISCRIMINATORS.kind_of(config) for config in SMALL.values()} == set(DISCRIMINATORS)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("batch", [1, 3, 6])
def test_every_image_has_a_logit(name: str, batch: int) -> None:
    logits = make(name, channels=1)(images_of(batch, 1, 16, 24))
    assert logits.shape[:2] == (batch, 1)
    assert logits.isfinite().all()


@pytest.mark.parametrize("name", SMALL)
def test_a_few_steps_tell_black_from_white(name: str) -> None:
    network, (black, white) = make(name), torch.stack([-torch.ones(4, 3, 16, 16), torch.ones(4, 3, 16, 16)])
    black, white = (each + 0.1 * images_of(4, 3, 16, 16) for each in (black, white))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(20):
        loss = discriminator_loss(network(white), network(black))
        optimizer.zero_grad()
        loss.backward()
        assert all(parameter.grad.isfinite().all() for parameter in network.parameters())  # type: ignore[union-attr]
        optimizer.step()
    assert loss.item() < 0.5


@pytest.mark.parametrize("name", SMALL)
def test_r1_has_a_finite_gradient_for_every_weight(name: str) -> None:
    network, images = make(name), images_of(4, 3, 16, 16).requires_grad_()
    penalty = r1_penalty(network(images), images)
    assert penalty > 0
    penalty.backward()
    for key, parameter in network.named_parameters():
        if not key.endswith("bias"):
            assert parameter.grad is not None, key
            assert parameter.grad.isfinite().all(), key
            assert parameter.grad.abs().sum() > 0, key


@pytest.mark.parametrize("name", SMALL)
def test_forward_changes_no_state_and_reads_nothing_on_the_host(name: str, as_if_captured: Callable[[], Any]) -> None:
    network, images = make(name).train(), images_of(4, 3, 16, 16)
    before = {key: tensor.clone() for key, tensor in network.state_dict().items()}
    with as_if_captured():
        first = network(images)
    assert torch.equal(first, network(images))
    assert torch.equal(first, network.eval()(images))
    assert all(torch.equal(tensor, before[key]) for key, tensor in network.state_dict().items())


@pytest.mark.parametrize("name", SMALL)
def test_a_process_without_images_has_zero_gradients(name: str) -> None:
    network = make(name)
    network(torch.zeros(0, 3, 16, 16)).sum().backward()
    assert all(parameter.grad.abs().sum() == 0 for parameter in network.parameters())  # type: ignore[union-attr]


@pytest.mark.parametrize("name", SMALL)
def test_bfloat16_autocast_changes_logits_little(name: str) -> None:
    network, images = make(name), images_of(4, 3, 16, 16)
    with torch.no_grad():
        expected = network(images)
        with torch.autocast("cpu", torch.bfloat16):
            logits = network(images).float()
    torch.testing.assert_close(logits, expected, rtol=0.0, atol=0.1 * float(expected.abs().max()))


@pytest.mark.parametrize("name", SMALL)
def test_images_of_a_wrong_size_are_refused(name: str) -> None:
    with pytest.raises(ArcvqError, match=r"got 4×16: set adversarial\.discriminator\.(layers|levels) to less"):
        make(name)(torch.zeros(2, 3, 4, 16))


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (PatchConfig, {"width": 10**6}, "width must be from 1 to 1024, got 1000000"),
        (PatchConfig, {"layers": 0}, "layers must be from 1 to 8, got 0"),
        (PatchConfig, {"norm": "group", "width": 8}, "groups must divide twice the width, 16, got 32"),
        (StyleGANConfig, {"levels": 11}, "levels must be from 1 to 10, got 11"),
        (StyleGANConfig, {"width": 64, "max_width": 32}, "max_width must be from 64 to 4096, got 32"),
    ],
)
def test_sizes_are_bounded(config: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArcvqError, match=message):
        config(**settings)


@pytest.mark.parametrize(("layers", "parameters"), [(3, 2_765_633), (2, 663_361)])
@pytest.mark.parametrize("blur", [False, True])
def test_patch_discriminator_has_the_published_size(layers: int, parameters: int, blur: bool) -> None:
    with torch.device("meta"):
        assert count(PatchDiscriminator(3, PatchConfig(layers=layers, blur=blur))) == parameters


@pytest.mark.parametrize(("layers", "side"), [(3, 30), (2, 62)])
def test_patch_discriminator_judges_patches(layers: int, side: int) -> None:
    """Of 256 pixels; the patches' own size is the width of the gradient of one logit."""
    network = PatchDiscriminator(1, PatchConfig(width=2, layers=layers, norm="none")).double()
    images = torch.rand(1, 1, 256, 256, dtype=torch.float64, requires_grad=True)
    logits = network(images)
    assert logits.shape == (1, 1, side, side)
    logits[0, 0, side // 2, side // 2].backward()
    assert images.grad is not None
    assert int((images.grad[0, 0] != 0).any(dim=0).sum()) == {3: 70, 2: 34}[layers]


def test_patch_discriminator_starts_as_published() -> None:
    torch.manual_seed(0)
    network = PatchDiscriminator(3, PatchConfig())
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.BatchNorm2d):
            mean = 0.0 if isinstance(module, nn.Conv2d) else 1.0
            tolerance = 5 * 0.02 / math.sqrt(module.weight.numel())
            assert module.weight.mean().item() == pytest.approx(mean, abs=tolerance)
            assert module.weight.std().item() == pytest.approx(0.02, abs=tolerance)
            assert module.bias is None or not module.bias.any()
    biased = [module.bias is not None for module in network.modules() if isinstance(module, nn.Conv2d)]
    assert biased == [True, False, False, False, True]


def test_stylegan_discriminator_is_the_published_one_but_for_the_flattened_map() -> None:
    """24,001,089 parameters at 256 pixels, less those of the linear layer that would see 15 more positions."""
    with torch.device("meta"):
        assert count(StyleGANDiscriminator(3, StyleGANConfig())) == 24_001_089 - 15 * 512 * 512


@pytest.mark.parametrize(("taps", "padding"), [((1, 2, 1), (1, 1)), ((1, 3, 3, 1), (2, 2))])
def test_blur_keeps_constants_and_takes_the_finest_stripes(taps: tuple[int, ...], padding: tuple[int, int]) -> None:
    blur = Blur(taps, padding)
    inside = (..., slice(2, -2), slice(2, -2))
    flat = blur(torch.ones(1, 2, 8, 8))[inside]
    torch.testing.assert_close(flat, torch.ones_like(flat))
    stripes = torch.ones(1, 2, 8, 8)
    stripes[..., ::2] = -1
    assert blur(stripes)[inside].abs().max() < 1e-6


def test_scaled_layers_keep_the_variance() -> None:
    torch.manual_seed(0)
    maps = ScaledConv2d(32, 64, 3)(torch.randn(16, 32, 10, 10))
    rows = ScaledLinear(256, 256)(torch.randn(256, 256))
    assert maps.std().item() == pytest.approx(1.0, abs=0.05)
    assert rows.std().item() == pytest.approx(1.0, abs=0.05)
    x = torch.randn(100_000)
    assert activate(x).square().mean().item() == pytest.approx(1.04, abs=0.03)  # 2·(1 + 0.2²)/2


@pytest.mark.parametrize(("batch", "size"), [(1, 1), (2, 2), (3, 3), (4, 4), (5, 1), (6, 3), (8, 4)])
def test_batch_deviation_is_the_mean_deviation_within_a_group(batch: int, size: int) -> None:
    maps = torch.randn(batch, 3, 2, 2, dtype=torch.float64)
    found = batch_deviation(maps)
    assert found.shape == (batch, 1, 2, 2)
    apart = batch // size
    for i in range(batch):
        group = maps[i % apart :: apart]
        assert len(group) == size
        expected = (group.var(dim=0, correction=0) + 1e-8).sqrt().mean()
        torch.testing.assert_close(found[i], expected.expand(1, 2, 2))
