"""Frozen encoders whose features of images can become a codebook; FEATURES, by name."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arcvq.config import did_you_mean
from arcvq.data import Images, to_unit
from arcvq.errors import ArcvqError
from arcvq.functional.precision import full_precision
from arcvq.metrics.lpips import Lpips, check_size, lpips_network
from arcvq.registry import NOT_REGISTERED

# Each image's features are averaged to a grid of this many places a side.
GRID = 4


class VGG16Features(nn.Module):
    """The last feature stage of LPIPS' VGG16: images (B, C, H, W) in [-1, 1] → (B, 512, H/16, W/16). Greyscale is repeated to RGB."""

    feature_dim = 512

    def __init__(self, network: Lpips) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        check_size(self.network.name, images)
        hidden = ((images + 1) / 2).expand(-1, 3, -1, -1)
        return self.network.net((2 * hidden - 1 - self.network.shift) / self.network.scale)


def load_vgg16(device: torch.device | str) -> nn.Module:
    """VGG16's features. Raises MissingWeights if its weights are not on this machine."""
    return VGG16Features(lpips_network("vgg", device=device))


# name → a function of the device that loads the encoder: a module with `feature_dim`, images in [-1, 1] → (B, feature_dim, h, w).
FEATURES: dict[str, Callable[[torch.device | str], nn.Module]] = {"vgg16": load_vgg16}


def feature_encoder(name: str, device: torch.device | str = "cpu") -> nn.Module:
    """The frozen encoder of this name, in evaluation mode."""
    if name not in FEATURES:
        raise ArcvqError(f"unknown features {name!r}{did_you_mean(name, FEATURES)}{NOT_REGISTERED}")
    return FEATURES[name](device).to(device).requires_grad_(False).eval()


@torch.no_grad()
def image_features(
    encoder: nn.Module, images: Images, *, number: int | None = None, batch_size: int = 64, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Features of `number` images drawn without replacement (all by default), and the image of each, as an index.

    The features of an image are averaged to a 4 × 4 grid, or to what they have if that is less: (N, feature_dim) float32 and
    int64 (N,), both on the CPU. In float32, whatever autocast or the matmul precision say.
    """
    total = len(images)
    chosen = torch.randperm(total, generator=torch.Generator().manual_seed(seed))[: total if number is None else number]
    if not len(chosen):
        raise ArcvqError(f"features need at least one image, and {images.name} has {total}")
    parts, owners = [], []
    for indices in chosen.split(batch_size):
        pixels = to_unit(images.gather(indices))
        with full_precision(pixels.device):
            maps = encoder(pixels).float()
        height, width = (min(GRID, side) for side in maps.shape[-2:])
        pooled = F.adaptive_avg_pool2d(maps, (height, width))
        parts.append(pooled.flatten(2).transpose(1, 2).flatten(0, 1).cpu())
        owners.append(indices.repeat_interleave(height * width))
    return torch.cat(parts), torch.cat(owners)
