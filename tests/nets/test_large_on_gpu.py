"""On a GPU, the networks of large images compute with kernels what they compute on a CPU without: results and all gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor

from arcvq.metrics.lpips import untrained_network
from arcvq.nets import AUTOENCODERS, Autoencoder
from arcvq.objectives.perceptual import PerceptualLoss

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SMALL: dict[str, Any] = {"width": 32, "groups": 8, "multipliers": (1, 2), "attention": (2,), "latent_dim": 8}


def outputs_and_gradients(autoencoder: Autoencoder, images: Tensor) -> dict[str, Tensor]:
    """The latents, the reconstruction, and the gradient of every parameter, on the CPU."""
    autoencoder.zero_grad()
    latents, context = autoencoder.encode(images)
    decoded = autoencoder.decode(latents, context).images
    (decoded.square().mean() + latents.square().mean()).backward()
    found = {name: parameter.grad for name, parameter in autoencoder.named_parameters() if parameter.grad is not None}
    return {name: each.detach().cpu() for name, each in {"latents": latents, "images": decoded, **found}.items()}


@pytest.mark.parametrize("kind", ["vqgan", "movq", "dfvqgan"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_network_computes_the_same_on_both_devices(kind: str, checkpointing: bool) -> None:
    torch.manual_seed(0)
    config = AUTOENCODERS.config(kind)(**SMALL, checkpointing=checkpointing)
    autoencoder = AUTOENCODERS[kind](3, config)
    images = torch.rand(2, 3, 32, 48) * 2 - 1
    expected = outputs_and_gradients(autoencoder, images)
    last = torch.channels_last
    autoencoder.to("cuda", memory_format=last)
    with torch.backends.cudnn.flags(allow_tf32=False):
        found = outputs_and_gradients(autoencoder, images.cuda().contiguous(memory_format=last))
    assert found.keys() == expected.keys()
    largest = max(float(value.abs().max()) for name, value in expected.items() if name not in ("latents", "images"))
    for name, value in expected.items():
        scale = max(
            float(value.abs().max()), 0.01 * largest
        )  # some gradients are 0 but for rounding, as those of attention's keys
        torch.testing.assert_close(found[name], value, rtol=0, atol=2e-4 * scale, msg=name)


def test_perceptual_loss_is_the_same_on_both_devices() -> None:
    network = untrained_network("vgg")
    generator = torch.Generator().manual_seed(0)
    for parameter in network.net.parameters():
        parameter.data = 0.05 * torch.randn(parameter.shape, generator=generator)
    loss = PerceptualLoss(network)
    images, reconstruction = (torch.rand(2, 3, 32, 32, generator=generator) * 2 - 1 for _ in range(2))
    found = []
    for device in ("cpu", "cuda"):
        leaf = reconstruction.to(device).requires_grad_()
        with torch.backends.cudnn.flags(allow_tf32=False):
            distance = loss.to(device)(leaf, images.to(device))
            (gradient,) = torch.autograd.grad(distance.sum(), leaf)
        found.append((distance.detach().cpu(), gradient.cpu()))
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-4)
