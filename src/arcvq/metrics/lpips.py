"""LPIPS v0.1: a distance between features of a classification network, with weights learned from human judgements."""

from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from arcvq.errors import ArcvqError
from arcvq.functional import conv2d, unit_distance
from arcvq.functional.precision import full_precision
from arcvq.metrics.image import check_pair
from arcvq.metrics.weights import load_state, load_weights

LpipsName = Literal["vgg", "alex"]
# Bounds the memory of the first feature maps, which are the largest.
PIXELS_AT_ONCE = 1 << 21


@dataclass(frozen=True)
class Trunk:
    """A classification network whose features LPIPS compares."""

    file: str
    url: str
    constructor: str
    ends: tuple[int, ...]  # features are compared after this many layers
    smallest: int  # side of the smallest image: below it a pooling layer has no output


TRUNKS: dict[str, Trunk] = {
    "vgg": Trunk(
        "vgg16-features.safetensors",
        "https://download.pytorch.org/models/vgg16-397923af.pth",
        "vgg16",
        (4, 9, 16, 23, 30),
        16,
    ),
    "alex": Trunk(
        "alexnet-features.safetensors",
        "https://download.pytorch.org/models/alexnet-owt-7be5be79.pth",
        "alexnet",
        (2, 5, 8, 10, 12),
        31,
    ),
}


class Lpips(nn.Module):
    """The LPIPS network: compares the features of `net` after each stage, with channels weighted by `heads`."""

    shift: Tensor
    scale: Tensor

    def __init__(self, name: str, net: nn.Sequential, heads: list[Tensor]) -> None:
        super().__init__()
        self.name = name
        self.net = net
        self.heads = nn.ParameterList(heads)  # (1, C, 1, 1) each
        self.register_buffer("shift", torch.tensor([-0.030, -0.088, -0.188]).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("scale", torch.tensor([0.458, 0.448, 0.450]).view(1, 3, 1, 1), persistent=False)

    def features(self, images: Tensor) -> list[Tensor]:
        """Features (B, C, h, w) after each stage."""
        hidden = (2 * images - 1 - self.shift) / self.scale
        stages = []
        for start, end in pairwise((0, *TRUNKS[self.name].ends)):
            for layer in self.net[start:end]:
                hidden = _convolve(layer, hidden) if isinstance(layer, nn.Conv2d) else layer(hidden)
            stages.append(hidden)
        return stages

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """LPIPS distances (B,) of two image batches (B, 3, H, W) in [0, 1]."""
        return self.distance(self.features(x), self.features(y))

    def distance(self, x: list[Tensor], y: list[Tensor]) -> Tensor:
        """LPIPS distances (B,) from the features of two batches."""
        return self.stage_distances(x, y).sum(dim=0)

    def stage_distances(self, x: list[Tensor], y: list[Tensor]) -> Tensor:
        """What each stage adds to the distances: (stages, B)."""
        return torch.stack([unit_distance(a, b, head.flatten()) for a, b, head in zip(x, y, self.heads)])


def _convolve(layer: nn.Conv2d, hidden: Tensor) -> Tensor:
    return conv2d(hidden, layer.weight, layer.bias, layer.stride, layer.padding)


def lpips_network(name: LpipsName = "vgg", *, device: torch.device | str = "cpu", download: bool = False) -> Lpips:
    """The frozen LPIPS network. Raises MissingWeights if the weights of its trunk are not on this machine."""
    if name not in TRUNKS:
        raise ArcvqError(f"unknown LPIPS network {name!r}; use one of {', '.join(TRUNKS)}")
    trunk = TRUNKS[name]
    state, source = load_weights(
        what=f"the {trunk.constructor} trunk of LPIPS",
        file=trunk.file,
        url=trunk.url,
        command="arcvq evaluate RUN --download, or "
        f"python -c \"import torchvision; torchvision.models.{trunk.constructor}(weights='DEFAULT')\"",
        download=download,
    )
    # torchvision's file has the whole classifier, ours only the features.
    prefix = "features."
    if any(key.startswith(prefix) for key in state):
        state = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    network = untrained_network(name)
    load_state(network.net, {key: state[key] for key in network.net.state_dict() if key in state}, source)
    return network.requires_grad_(False).eval().to(device)


def untrained_network(name: LpipsName) -> Lpips:
    """An LPIPS network with torchmetrics' heads and an uninitialized trunk."""
    import torchvision  # slow to import and only needed here

    trunk = TRUNKS[name]
    # An evaluation must not change training's random state. On "meta" the unused classifier takes no memory.
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        net = getattr(torchvision.models, trunk.constructor)().features[: trunk.ends[-1]]
    file = resources.files("torchmetrics") / "functional" / "image" / "lpips_models" / f"{name}.pth"
    with file.open("rb") as stream:
        heads = torch.load(stream, map_location="cpu", weights_only=True)
    return Lpips(name, net.to_empty(device="cpu"), [heads[f"lin{i}.model.1.weight"] for i in range(len(trunk.ends))])


def check_size(name: str, images: Tensor) -> None:
    """Raise if images are too small for this LPIPS network."""
    smallest = TRUNKS[name].smallest
    if min(images.shape[-2:]) < smallest:
        raise ArcvqError(
            f"LPIPS with {name} needs images of at least {smallest} pixels a side, but these are "
            f"{images.shape[-1]}x{images.shape[-2]}"
        )


def lpips(x: Tensor, y: Tensor, network: nn.Module) -> Tensor:
    """LPIPS distances (B,) of two batches of floats (B, C, H, W) in [0, 1]; greyscale is repeated to RGB."""
    check_pair(x, y)
    check_size(str(network.name), x)
    per_chunk = max(1, PIXELS_AT_ONCE // (x.shape[-2] * x.shape[-1]))
    distances = []
    with torch.no_grad(), full_precision(x.device):
        for a, b in zip(x.float().split(per_chunk), y.float().split(per_chunk)):
            a, b = a.expand(-1, 3, -1, -1), b.expand(-1, 3, -1, -1)
            distances.append(network(a, b))
    return torch.cat(distances)
