"""DF-VQGAN: what is visible does not learn of what is defective, and without a mask it is a plain autoencoder."""

import dataclasses

import pytest
import torch
from diffusers_weights import perturb
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from arcvq import ArcvqError
from arcvq.nets import DfvqganAutoencoder, DfvqganConfig, VqganAutoencoder, VqganConfig
from arcvq.nets.attention import SelfAttention
from arcvq.nets.blocks import ResidualBlock
from arcvq.nets.dfvqgan import DefectContext, MaskedDownsample, MaskedGroupNorm, connect

SMALL = DfvqganConfig(width=8, multipliers=(1, 2, 4), attention=(2,), groups=4, latent_dim=6)


def random_autoencoder(config: DfvqganConfig = SMALL) -> DfvqganAutoencoder:
    torch.manual_seed(0)
    autoencoder = DfvqganAutoencoder(3, config).double()
    perturb(autoencoder)
    return autoencoder


def some_images() -> Tensor:
    return torch.randn(2, 3, 16, 24, dtype=torch.float64)


def two_masks() -> Tensor:
    """A block that cuts through the grid's cells, and a few single pixels."""
    mask = torch.zeros(2, 1, 16, 24, dtype=torch.bool)
    mask[0, :, 3:11, 6:13] = True
    mask[1, :, 5, 7] = mask[1, :, 0, 0] = mask[1, :, 15, 20] = True
    return mask


def test_without_a_mask_the_encoder_is_vqgans() -> None:
    ours = random_autoencoder()
    plain = VqganAutoencoder(3, VqganConfig(**dataclasses.asdict(SMALL))).double()
    plain.encoder.load_state_dict(ours.encoder.state_dict(), strict=True)
    images = some_images()
    latents, context = ours.encode(images)
    assert context is None
    assert torch.equal(latents, plain.encode(images)[0])


def test_a_mask_of_ones_is_no_mask() -> None:
    autoencoder, images = random_autoencoder(), some_images()
    latents, context = autoencoder.encode(images, torch.ones(2, 1, 16, 24))
    want = autoencoder.encode(images)[0]
    assert torch.equal(latents, want)
    assert torch.equal(autoencoder.decode(latents, context).images, autoencoder.decode(latents).images)


def test_a_mask_of_zeros_encodes_as_no_mask_does() -> None:
    autoencoder, images = random_autoencoder(), some_images()
    latents, _ = autoencoder.encode(images, torch.zeros(2, 1, 16, 24))
    torch.testing.assert_close(latents, autoencoder.encode(images)[0], rtol=1e-10, atol=1e-10)


def test_defective_pixels_change_no_visible_feature() -> None:
    autoencoder, images, mask = random_autoencoder(), some_images(), two_masks()
    others = torch.where(mask, 5 * torch.randn_like(images), images)
    latents, context = autoencoder.encode(images, mask)
    other_latents, other_context = autoencoder.encode(others, mask)
    assert len(context.skips) == len(context.masks) == 3 * 2 + 2
    for a, b, hidden in zip(context.skips, other_context.skips, context.masks):
        assert torch.equal(a.masked_fill(hidden, 0), b.masked_fill(hidden, 0))
        assert not torch.allclose(a, b)
    hidden = context.masks[-1]
    assert (~hidden).any()
    assert torch.equal(latents.masked_fill(hidden, 0), other_latents.masked_fill(hidden, 0))


def test_visible_pixels_change_defective_features() -> None:
    autoencoder, images, mask = random_autoencoder(), some_images(), two_masks()
    others = torch.where(mask, images, torch.randn_like(images))
    (a, context), (b, _) = autoencoder.encode(images, mask), autoencoder.encode(others, mask)
    assert not torch.isclose(a, b)[context.masks[-1].expand_as(a)].any()


def test_a_visible_position_is_normalized_by_visible_values() -> None:
    torch.manual_seed(0)
    norm = MaskedGroupNorm(6, groups=2, eps=1e-6).double()
    perturb(norm)
    x = 3 + 2 * torch.randn(3, 6, 4, 5, dtype=torch.float64)
    mask = torch.rand(3, 1, 4, 5) < 0.4
    mask[2] = True  # nothing is visible
    got, everywhere = norm(x, mask), norm(x)
    for image in range(2):
        visible = ~mask[image, 0]
        for channel in range(6):
            group = x[image, 3 * (channel // 3) : 3 * (channel // 3) + 3][:, visible]
            normed = (x[image, channel] - group.mean()) / (group.var(unbiased=False) + 1e-6).sqrt()
            want = torch.where(visible, normed * norm.weight[channel] + norm.bias[channel], everywhere[image, channel])
            torch.testing.assert_close(got[image, channel], want, rtol=1e-10, atol=1e-10)
    assert torch.equal(got[2], everywhere[2])


def test_a_position_is_defective_after_halving_if_any_of_its_four_was() -> None:
    layer, mask = MaskedDownsample(1), torch.zeros(1, 1, 4, 4, dtype=torch.bool)
    nn.init.ones_(layer.conv.weight)
    nn.init.zeros_(layer.conv.bias)
    mask[..., 0, 2] = True
    sums = layer(torch.arange(16.0).view(1, 1, 4, 4), mask)
    assert sums.flatten().tolist() == [45 - 2, 39, 66, 50]  # of these only the second sees the defective 2


def test_skips_are_averaged_where_the_image_is_visible() -> None:
    h, skip = torch.randn(2, 2, 3, 4, 5, dtype=torch.float64)
    mask = torch.rand(2, 1, 4, 5) < 0.5
    m = mask.double()
    torch.testing.assert_close(connect(h, skip, mask, None), (skip * (1 - m) + h * m + h) / 2)
    got = connect(h, skip, mask, torch.tensor([True, False]))
    torch.testing.assert_close(got[0], connect(h, skip, mask, None)[0])
    assert torch.equal(got[1], h[1])


def test_skips_can_be_disabled_for_some_images_of_a_batch() -> None:
    autoencoder, images, mask = random_autoencoder(), some_images(), two_masks()
    latents, context = autoencoder.encode(images, mask)
    plain, connected = autoencoder.decode(latents).images, autoencoder.decode(latents, context).images
    some = autoencoder.decode(latents, context._replace(connected=torch.tensor([False, True]))).images
    assert not torch.isclose(plain, connected).all(dim=1).any()
    torch.testing.assert_close(some[0], plain[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(some[1], connected[1], rtol=1e-12, atol=1e-12)


def test_each_layer_of_the_decoder_gets_the_feature_of_its_mirror_image() -> None:
    autoencoder, images = random_autoencoder(), some_images()
    latents, context = autoencoder.encode(images, torch.zeros(2, 1, 16, 24))
    seen: list[Tensor] = []
    for layer in autoencoder.decoder.layers:
        layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    autoencoder.decode(latents)
    for x, skip in zip(seen, reversed(context.skips), strict=True):
        assert x.shape == skip.shape
    assert seen[-1].shape == (2, 8, 16, 24)


def test_the_decoder_attends_before_a_block_and_has_as_many_blocks_as_the_encoder() -> None:
    autoencoder = random_autoencoder()
    kinds = [[type(each) for each in layer.children()] for layer in autoencoder.decoder.layers]
    assert kinds[3] == kinds[4] == [SelfAttention, ResidualBlock]
    for part in (autoencoder.encoder, autoencoder.decoder):
        assert sum(isinstance(each, ResidualBlock) for each in part.modules()) == 3 * 2 + 2


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_are_finite_where_all_or_nothing_is_defective(checkpointing: bool) -> None:
    autoencoder, images = random_autoencoder(dataclasses.replace(SMALL, checkpointing=checkpointing)), some_images()
    mask = torch.tensor([1.0, 0.0]).view(2, 1, 1, 1).expand(2, 1, 16, 24)
    latents, context = autoencoder.encode(images.requires_grad_(), mask)
    autoencoder.decode(latents, context).images.square().sum().backward()
    gradients = [parameter.grad for parameter in autoencoder.parameters()] + [images.grad]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)


def test_bfloat16_autocast_changes_little_with_a_mask() -> None:
    autoencoder, images = random_autoencoder().float(), some_images().float()
    want, context = autoencoder.encode(images, two_masks())
    images_wanted = autoencoder.decode(want, context).images
    with torch.autocast("cpu", torch.bfloat16):
        got, context = autoencoder.encode(images, two_masks())
        images_got = autoencoder.decode(want, context).images
    assert (got - want).abs().mean() < 0.05 * want.std()
    assert (images_got - images_wanted).abs().mean() < 0.05 * images_wanted.std()


def test_the_published_sizes_are_the_defaults() -> None:
    with FakeTensorMode():  # shapes without numbers
        autoencoder, images = DfvqganAutoencoder(3, DfvqganConfig()), torch.empty(2, 3, 256, 256)
        latents, context = autoencoder.encode(images, torch.ones(2, 1, 256, 256))
        assert isinstance(context, DefectContext)
        assert latents.shape == (2, 256, 32, 32)
        assert autoencoder.decode(latents, context).images.shape == images.shape
    attentions = [name for name, module in autoencoder.named_modules() if isinstance(module, SelfAttention)]
    assert attentions == ["encoder.middle.0.attention", "decoder.middle.0.attention"]


def test_a_mask_of_another_shape_is_refused() -> None:
    with pytest.raises(ArcvqError, match=r"mask \(2, 1, 16, 24\).* got \(2, 16, 24\)"):
        random_autoencoder().encode(some_images(), torch.zeros(2, 16, 24))


def test_a_decoder_that_does_not_mirror_the_encoder_is_refused() -> None:
    with pytest.raises(ArcvqError, match=r"decoder_blocks must be autoencoder\.blocks \(2\)"):
        DfvqganConfig(decoder_blocks=3)
