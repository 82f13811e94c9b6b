"""Fréchet inception distance: the distance of two image sets as two Gaussians of Inception features."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arcvq.errors import ArcvqError
from arcvq.functional.precision import full_precision
from arcvq.metrics.eight_bit import pil_resize, tile_to_rgb
from arcvq.metrics.weights import load_state, load_weights

INPUT_SIZE = 299
# Images per pass: MIN_BATCH of them take about 300 MB for the first feature maps; a GPU takes more, by its memory in GiB.
MIN_BATCH, IMAGES_PER_GIB, MAX_BATCH = 50, 6, 500
WEIGHTS_FILE = "inception-2015-12-05.safetensors"
DOWNLOAD_COMMAND = (
    'python -c "from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3 as F; '
    "F('inception-v3-compat', ['2048'])\""
)

Interpolation = Literal["tensorflow", "torch"]


class InceptionNetwork(nn.Sequential):
    """torch-fidelity's InceptionV3 up to its 2048 pooled features: (B, 3, 299, 299) in [-1, 1] to (B, 2048).

    It has the same layers in the same order with the same names, so that the weights load unchanged. The resize before it is
    in `fid_input`, because protocols differ there.
    """

    def __init__(self) -> None:
        from torch_fidelity import feature_extractor_inceptionv3 as blocks  # slow to import and only needed here

        super().__init__()
        layers: dict[str, nn.Module] = {
            "Conv2d_1a_3x3": blocks.BasicConv2d(3, 32, kernel_size=3, stride=2),
            "Conv2d_2a_3x3": blocks.BasicConv2d(32, 32, kernel_size=3),
            "Conv2d_2b_3x3": blocks.BasicConv2d(32, 64, kernel_size=3, padding=1),
            "MaxPool_1": nn.MaxPool2d(kernel_size=3, stride=2),  # (B, 64, 73, 73)
            "Conv2d_3b_1x1": blocks.BasicConv2d(64, 80, kernel_size=1),
            "Conv2d_4a_3x3": blocks.BasicConv2d(80, 192, kernel_size=3),
            "MaxPool_2": nn.MaxPool2d(kernel_size=3, stride=2),  # (B, 192, 35, 35)
            "Mixed_5b": blocks.InceptionA(192, pool_features=32),
            "Mixed_5c": blocks.InceptionA(256, pool_features=64),
            "Mixed_5d": blocks.InceptionA(288, pool_features=64),
            "Mixed_6a": blocks.InceptionB(288),  # (B, 768, 17, 17)
            "Mixed_6b": blocks.InceptionC(768, channels_7x7=128),
            "Mixed_6c": blocks.InceptionC(768, channels_7x7=160),
            "Mixed_6d": blocks.InceptionC(768, channels_7x7=160),
            "Mixed_6e": blocks.InceptionC(768, channels_7x7=192),
            "Mixed_7a": blocks.InceptionD(768),  # (B, 1280, 8, 8)
            "Mixed_7b": blocks.InceptionE_1(1280),
            "Mixed_7c": blocks.InceptionE_2(2048),  # (B, 2048, 8, 8)
            "AvgPool": nn.AdaptiveAvgPool2d(1),
            "Flatten": nn.Flatten(),  # (B, 2048)
        }
        for name, layer in layers.items():
            self.add_module(name, layer)


def fid_network(*, device: torch.device | str = "cpu", download: bool = False) -> InceptionNetwork:
    """The frozen Inception network of FID. Raises MissingWeights if its weights are not on this machine."""
    from torch_fidelity.feature_extractor_inceptionv3 import URL_INCEPTION_V3

    state, source = load_weights(
        what="the Inception network of FID",
        file=WEIGHTS_FILE,
        url=URL_INCEPTION_V3,
        command=f"arcvq evaluate RUN --download, or {DOWNLOAD_COMMAND}",
        download=download,
    )
    # An evaluation during training must not change the random state.
    with torch.random.fork_rng(devices=[]):
        network = InceptionNetwork()
    load_state(network, {key: value for key, value in state.items() if not key.startswith("fc.")}, source)
    network.requires_grad_(False).eval().to(device)
    if torch.device(device).type == "cpu":  # its convolutions are faster in this layout
        network.to(memory_format=torch.channels_last)
    return network


def inception_head(*, device: torch.device | str = "cpu", download: bool = False) -> nn.Linear:
    """The classification head of the Inception network, from its features (B, 2048) to logits (B, 1008).

    Without a bias, as the Inception Score is computed since its first release. Raises MissingWeights if there is no file with a head.
    """
    from torch_fidelity.feature_extractor_inceptionv3 import URL_INCEPTION_V3

    state, source = load_weights(
        what="the classification head of FID's Inception network",
        file=WEIGHTS_FILE,
        url=URL_INCEPTION_V3,
        command=DOWNLOAD_COMMAND,
        download=download,
        needs=("fc.weight",),
    )
    with torch.device("meta"):
        head = nn.Linear(2048, 1008, bias=False)
    head.to_empty(device="cpu")
    load_state(head, {"weight": state["fc.weight"]} if "fc.weight" in state else {}, source)
    return head.requires_grad_(False).eval().to(device)


def fid_input(images: Tensor, first_side: int | None, interpolation: Interpolation) -> Tensor:
    """Convert uint8 (B, C, H, W) to the network's input: float (B, 3, 299, 299) in about [-1, 1].

    `tensorflow` is the resize of the original FID graph, as in torch-fidelity; `torch` is that of pytorch-fid. With
    `first_side`, Pillow first resizes the 8-bit image (bilinear) to that side.
    """
    from torch_fidelity.interpolate_compat_tensorflow import interpolate_bilinear_2d_like_tensorflow1x

    if images.dtype != torch.uint8 or images.ndim != 4:
        raise ArcvqError(f"FID takes uint8 (B, C, H, W) images, but got {images.dtype} {tuple(images.shape)}")
    images = tile_to_rgb(images)
    if first_side is not None:
        images = pil_resize(images, first_side)
    size = (INPUT_SIZE, INPUT_SIZE)
    if interpolation == "tensorflow":
        levels = interpolate_bilinear_2d_like_tensorflow1x(images.float(), size=size, align_corners=False)
        return (levels - 128.0) / 128.0
    if interpolation == "torch":
        return 2.0 * F.interpolate(images.float() / 255.0, size=size, mode="bilinear", align_corners=False) - 1.0
    raise ArcvqError(f"unknown FID interpolation {interpolation!r}; use 'tensorflow' or 'torch'")


def fid_features(
    images: Tensor, network: nn.Module, *, resize: int | None = None, interpolation: Interpolation = "tensorflow"
) -> Tensor:
    """Inception features (B, 2048), float32, of uint8 images (B, C, H, W) on the network's device."""
    with torch.no_grad(), full_precision(images.device):
        chunks = images.split(fid_batch_size(images.device))
        return torch.cat([network(fid_input(chunk, resize, interpolation)) for chunk in chunks])


def fid_batch_size(device: torch.device) -> int:
    """Images per pass of the FID network, by the device's total memory, so that the same device computes the same bits."""
    if device.type != "cuda":
        return MIN_BATCH
    gib = torch.cuda.get_device_properties(device).total_memory >> 30
    return min(MAX_BATCH, max(MIN_BATCH, IMAGES_PER_GIB * gib))


class FeatureStatistics:
    """Running mean and covariance of features that come in batches."""

    def __init__(self) -> None:
        self.count = 0
        # Scalars until the first features give their width and device.
        self.total = torch.zeros((), dtype=torch.float64)  # (D,)
        self.products = torch.zeros((), dtype=torch.float64)  # (D, D)
        self.root: Tensor | None = None  # (D, D), once computed

    def update(self, features: Tensor) -> None:
        """Add a batch of features (B, D)."""
        features = features.double()
        self.count += len(features)
        self.total = self.total + features.sum(0)
        self.products = self.products + features.T @ features
        self.root = None

    def mean(self) -> Tensor:
        """The mean feature, (D,)."""
        return self.total / self.count

    def covariance(self) -> Tensor:
        """The sample covariance, (D, D)."""
        if self.count < 2:
            raise ArcvqError(f"FID needs at least 2 images on each side, but got {self.count}")
        mean = self.mean()
        return (self.products - self.count * torch.outer(mean, mean)) / (self.count - 1)

    def covariance_root(self) -> Tensor:
        """The symmetric square root of the covariance, (D, D), computed once."""
        if self.root is None:
            values, vectors = torch.linalg.eigh(self.covariance())
            self.root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
        return self.root


def frechet_distance(first: FeatureStatistics, second: FeatureStatistics) -> float:
    """Fréchet distance of two Gaussians: |m1 - m2|² + tr(S1 + S2 - 2 (S1 S2)^½).

    The trace of that root is the sum of the square roots of the eigenvalues of R S2 R with R = S1^½. This matrix is symmetric, so
    its eigenvalues are real and, up to rounding, at least 0, even if fewer images than features make S1 singular.
    """
    covariance_1, covariance_2 = first.covariance(), second.covariance()
    root = first.covariance_root()
    product = root @ covariance_2 @ root
    eigenvalues = torch.linalg.eigvalsh((product + product.T) / 2).clamp(min=0)
    distance = (first.mean() - second.mean()).square().sum()
    distance = distance + covariance_1.trace() + covariance_2.trace() - 2 * eigenvalues.sqrt().sum()
    return max(0.0, float(distance))
