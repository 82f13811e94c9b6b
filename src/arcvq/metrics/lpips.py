"""LPIPS v0.1: distance between the features of a classification network, weighted as people judged it."""

from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from arcvq.errors import ArcvqError
from arcvq.functional.precision import full_precision
from arcvq.metrics.image import check_pair
from arcvq.metrics.weights import fill, load_weights

LpipsName = Literal["vgg", "alex"]
# Bounds the memory of the trunk's first feature maps, which are the largest.
PIXELS_AT_ONCE = 1 << 21


@dataclass(frozen=True)
class Trunk:
    file: str
    url: str
    constructor: str
    ends: tuple[int, ...]  # the features are compared after these many layers
    smallest: int  # below this many pixels a pooling layer would have nothing left


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
    """The features of `net` are compared after each of its stages; the heads weigh their channels."""

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
        """After each stage (B, C, h, w), of length one at every position."""
        hidden = (2 * images - 1 - self.shift) / self.scale
        stages = []
        for start, end in pairwise((0, *TRUNKS[self.name].ends)):
            hidden = self.net[start:end](hidden)
            # Float32 under autocast. The gradient of a norm of 0 is 0 here, where that of a square root would be infinite.
            full = hidden.float() if hidden.dtype != torch.float64 else hidden
            stages.append(full / (torch.linalg.vector_norm(full, dim=1, keepdim=True) + 1e-10))
        return stages

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """(B, 3, H, W) in [0, 1], twice → (B,)."""
        return self.distance(self.features(x), self.features(y))

    def distance(self, x: list[Tensor], y: list[Tensor]) -> Tensor:
        """Features of two batches → (B,)."""
        with torch.autocast(x[0].device.type, enabled=False):
            distances = [
                nn.functional.conv2d((a - b).square(), head).mean(dim=(1, 2, 3)) for a, b, head in zip(x, y, self.heads)
            ]
            return torch.stack(distances).sum(dim=0)


def lpips_network(name: LpipsName = "vgg", *, device: torch.device | str = "cpu", download: bool = False) -> Lpips:
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
    fill(network.net, {key: state[key] for key in network.net.state_dict() if key in state}, source)
    return network.requires_grad_(False).eval().to(device)


def untrained_network(name: LpipsName) -> Lpips:
    """The linear heads come with torchmetrics; the trunk's tensors hold nothing yet."""
    import torchvision  # slow to import, and only this metric needs it

    trunk = TRUNKS[name]
    # A training run evaluates: its random state must not move. On "meta" the classifier, soon dropped, takes no memory.
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        net = getattr(torchvision.models, trunk.constructor)().features[: trunk.ends[-1]]
    file = resources.files("torchmetrics") / "functional" / "image" / "lpips_models" / f"{name}.pth"
    with file.open("rb") as stream:
        heads = torch.load(stream, map_location="cpu", weights_only=True)
    return Lpips(name, net.to_empty(device="cpu"), [heads[f"lin{i}.model.1.weight"] for i in range(len(trunk.ends))])


def check_size(name: str, images: Tensor) -> None:
    smallest = TRUNKS[name].smallest
    if min(images.shape[-2:]) < smallest:
        raise ArcvqError(
            f"LPIPS with {name} needs images of at least {smallest} pixels a side, but these are "
            f"{images.shape[-1]}x{images.shape[-2]}"
        )


def lpips(x: Tensor, y: Tensor, network: nn.Module) -> Tensor:
    """(B,) distances between (B, C, H, W) floats in [0, 1]; greyscale is tiled to RGB."""
    check_pair(x, y)
    check_size(str(network.name), x)
    per_chunk = max(1, PIXELS_AT_ONCE // (x.shape[-2] * x.shape[-1]))
    distances = []
    with torch.no_grad(), full_precision(x.device):
        for a, b in zip(x.float().split(per_chunk), y.float().split(per_chunk)):
            a, b = a.expand(-1, 3, -1, -1), b.expand(-1, 3, -1, -1)
            distances.append(network(a, b))
    return torch.cat(distances)
