"""Features of VGG16 for precision and recall: the 4096 outputs of its second fully connected layer."""

import torch
from torch import Tensor, nn

from arcvq.errors import ArcvqError
from arcvq.functional.precision import full_precision, ieee_matmul
from arcvq.metrics.eight_bit import tile_to_rgb
from arcvq.metrics.weights import load_state, load_weights

INPUT_SIZE = 224
BATCH = 32  # images per pass: about 1 GB for the first feature maps
WEIGHTS_FILE = "vgg16.safetensors"
URL = "https://download.pytorch.org/models/vgg16-397923af.pth"
# ImageNet's mean and standard deviation of each channel, for levels 0 to 255.
MEAN = (0.485 * 255, 0.456 * 255, 0.406 * 255)
STD = (0.229 * 255, 0.224 * 255, 0.225 * 255)


def vgg_network(*, device: torch.device | str = "cpu", download: bool = False) -> nn.Module:
    """The frozen VGG16 up to its second fully connected layer with ReLU. Raises MissingWeights if its weights are not here."""
    network = untrained_vgg()
    state, source = load_weights(
        what="the VGG16 of precision and recall",
        file=WEIGHTS_FILE,
        url=URL,
        command="python -c \"import torchvision; torchvision.models.vgg16(weights='DEFAULT')\"",
        download=download,
    )
    load_state(network, {name: value for name, value in state.items() if not name.startswith("classifier.6.")}, source)
    return network.requires_grad_(False).eval().to(device)


def untrained_vgg() -> nn.Module:
    """torchvision's VGG16 without its last layer, with uninitialized weights."""
    import torchvision  # slow to import and only needed here

    with torch.device("meta"):  # an evaluation must not change the random state
        network: nn.Module = torchvision.models.vgg16()
    network.classifier = nn.Sequential(*list(network.classifier)[:5])  # type: ignore[arg-type]  # a Sequential
    return network.to_empty(device="cpu")


def vgg_features(images: Tensor, network: nn.Module) -> Tensor:
    """Features (B, 4096), float32, of uint8 images (B, C, H, W) on the network's device; greyscale is repeated to RGB.

    Images are resized to 224 as FID's network resizes to 299 (bilinear, as in TensorFlow 1), and so are torch-fidelity's.
    """
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise ArcvqError(f"VGG takes uint8 (B, C, H, W) images, but got {images.dtype} {tuple(images.shape)}")
    with torch.no_grad(), full_precision(images.device), ieee_matmul(images):
        return torch.cat([network(_input(chunk)) for chunk in images.split(BATCH)])


def _input(images: Tensor) -> Tensor:
    """uint8 (B, C, H, W) → normalized floats (B, 3, 224, 224)."""
    from torch_fidelity.interpolate_compat_tensorflow import interpolate_bilinear_2d_like_tensorflow1x

    levels = tile_to_rgb(images).float()
    levels = interpolate_bilinear_2d_like_tensorflow1x(levels, size=(INPUT_SIZE, INPUT_SIZE), align_corners=False)
    mean, std = (torch.tensor(values, device=levels.device).view(1, 3, 1, 1) for values in (MEAN, STD))
    return (levels - mean) / std
