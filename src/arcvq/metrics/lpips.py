"""LPIPS v0.1: distance between the features of a classification network, weighted as people judged it."""

import warnings
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from arcvq.errors import ArcvqError
from arcvq.metrics.image import check_pair
from arcvq.metrics.precision import full_precision
from arcvq.metrics.weights import fill, load_weights

LpipsName = Literal["vgg", "alex"]
# Bounds the memory of the trunk's first feature maps, which are the largest.
PIXELS_AT_ONCE = 1 << 21


@dataclass(frozen=True)
class Trunk:
    file: str
    url: str
    constructor: str
    smallest: int  # below this many pixels a pooling layer would have nothing left


TRUNKS: dict[str, Trunk] = {
    "vgg": Trunk("vgg16-features.safetensors", "https://download.pytorch.org/models/vgg16-397923af.pth", "vgg16", 16),
    "alex": Trunk(
        "alexnet-features.safetensors",
        "https://download.pytorch.org/models/alexnet-owt-7be5be79.pth",
        "alexnet",
        31,
    ),
}


def lpips_network(name: LpipsName = "vgg", *, device: torch.device | str = "cpu", download: bool = False) -> nn.Module:
    """The frozen network of LPIPS. Raises MissingWeights when its trunk is not on this machine."""
    if name not in TRUNKS:
        raise ArcvqError(f"unknown LPIPS network {name!r}; use one of {', '.join(TRUNKS)}")
    trunk = TRUNKS[name]
    state, source = load_weights(
        what=f"the {trunk.constructor} trunk of LPIPS",
        file=trunk.file,
        url=trunk.url,
        command=f"python -c \"import torchvision; torchvision.models.{trunk.constructor}(weights='DEFAULT')\"",
        download=download,
    )
    # The whole classifier is in torchvision's cache, the features alone in our own files.
    prefix = "features."
    if any(key.startswith(prefix) for key in state):
        state = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    network = untrained_network(name)
    slices = network.get_submodule("net")
    # lpips cuts the features into slices but keeps their numbers: slice2.5.weight is features.5.weight.
    trunk_state = {key: state[key.split(".", 1)[1]] for key in slices.state_dict() if key.split(".", 1)[1] in state}
    fill(slices, trunk_state, source)
    return network.requires_grad_(False).eval().to(device)


def untrained_network(name: LpipsName) -> nn.Module:
    """lpips' own module: the linear heads come with the package, the trunk is still random."""
    import lpips  # slow to import, and only this metric needs it

    # The random start is thrown away at once; it must not move the random state of a training run that evaluates.
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="torchvision")
        return lpips.LPIPS(net=name, version="0.1", pnet_rand=True, verbose=False)


def lpips(x: Tensor, y: Tensor, network: nn.Module) -> Tensor:
    """(B,) distances between (B, C, H, W) floats in [0, 1]; greyscale is tiled to RGB."""
    check_pair(x, y)
    smallest = TRUNKS[str(network.pnet_type)].smallest
    if min(x.shape[-2:]) < smallest:
        raise ArcvqError(
            f"LPIPS with {network.pnet_type} needs images of at least {smallest} pixels a side, but these are "
            f"{x.shape[-1]}x{x.shape[-2]}"
        )
    per_chunk = max(1, PIXELS_AT_ONCE // (x.shape[-2] * x.shape[-1]))
    distances = []
    with torch.no_grad(), full_precision(x.device):
        for a, b in zip(x.float().split(per_chunk), y.float().split(per_chunk)):
            a, b = a.expand(-1, 3, -1, -1), b.expand(-1, 3, -1, -1)
            distances.append(network(a, b, normalize=True).flatten())  # (b, 1, 1, 1) -> (b,)
    return torch.cat(distances)
