"""The blocks of a large autoencoder in bf16: GroupNorm with SiLU, and attention with one head, ours beside torch's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arcvq.functional import attend
from arcvq.nets import GroupNorm
from benchmarks.measure import Limits, measure_cost


class FeatureMap(NamedTuple):
    images: int
    channels: int
    side: int


# On a GPU the feature maps of VQGAN f8 (width 128, multipliers 1, 2, 2, 4) for 30 images of 256 × 256 pixels.
NORM_SIZES = {
    "cuda": [FeatureMap(30, *level) for level in ((128, 256), (256, 128), (256, 64), (512, 32))],
    "cpu": [FeatureMap(2, 64, 32)],
}
ATTENTION_SIZES = {"cuda": [FeatureMap(30, 512, 32)], "cpu": [FeatureMap(2, 64, 16)]}
LAYOUTS = {"channels last": torch.channels_last, "contiguous": torch.contiguous_format}
# How often GroupNorm moves a feature map at least: its statistics take one pass, their use another. Forward reads x twice and writes
# the result; backward reads x and the incoming gradient twice and writes the gradient.
WAYS = {"forward": 3, "forward and backward": 8}
GROUPS, EPS = 32, 1e-6

Function = Callable[..., Tensor]


def block_rows(device: torch.device, limits: Limits, seconds: float) -> Iterator[dict[str, Any]]:
    """A row per block, size, implementation and way; those of GroupNorm say what share of the device's bandwidth they reach."""
    for size in NORM_SIZES[device.type]:
        for layout, memory_format in LAYOUTS.items():
            inputs = [_noise(size, device).contiguous(memory_format=memory_format) for _ in range(2)]
            for name, module in _norms(size.channels, device).items():
                for way, passes in WAYS.items():
                    row = {"task": "norm", "name": f"{name} {layout}, {way}", "way": way, **size._asdict()}
                    cost = _measure(module, inputs[:1], inputs[1], list(module.parameters()), way, seconds)
                    least = limits.milliseconds(0, passes * inputs[0].nbytes)
                    yield row | cost | {"limit_milliseconds": least, "limit_fraction": least / cost["milliseconds"]}
    for size in ATTENTION_SIZES[device.type]:
        *queries, grad = (_noise(size, device).flatten(2).mT.contiguous() for _ in range(4))
        for name, function in {"arcvq": attend, "torch": _torch_attention}.items():
            for way in WAYS:
                row = {"task": "attention", "name": f"{name} {way}", "way": way, **size._asdict()}
                yield row | _measure(function, queries, grad, [], way, seconds)


def _noise(size: FeatureMap, device: torch.device) -> Tensor:
    """A random feature map in bf16."""
    return torch.randn(size.images, size.channels, size.side, size.side, device=device, dtype=torch.bfloat16)


def _norms(channels: int, device: torch.device) -> dict[str, nn.Module]:
    """Our GroupNorm with SiLU, and torch's."""
    torchs = nn.Sequential(nn.GroupNorm(GROUPS, channels, EPS), nn.SiLU())
    return {"arcvq": GroupNorm(channels, GROUPS, EPS, "silu").to(device), "torch": torchs.to(device)}


def _torch_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1)).squeeze(1)


def _measure(
    function: Function, inputs: list[Tensor], grad: Tensor, parameters: list[nn.Parameter], way: str, seconds: float
) -> dict[str, float]:
    """The cost of one way of calling the function under bf16 autocast. Its result is cast to bf16, as by a convolution behind it."""
    device, leaves = grad.device, [each.detach().requires_grad_() for each in inputs]

    def forward() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            return function(*leaves).to(torch.bfloat16)

    def forward_and_backward() -> object:
        return torch.autograd.grad(forward(), [*leaves, *parameters], grad)

    if way == "forward":
        with torch.no_grad():
            return measure_cost(forward, device, seconds)
    return measure_cost(forward_and_backward, device, seconds)
