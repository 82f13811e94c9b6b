"""What is known of another project's checkpoint, and the tokenizer that it becomes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from arcvq.errors import ArcvqError
from arcvq.nets import AutoencoderConfig
from arcvq.quantizers import VQConfig
from arcvq.tokenizers.build import build_tokenizer
from arcvq.tokenizers.foreign.weights import Weights
from arcvq.tokenizers.tokenizer import Tokenizer

Shape = tuple[int, ...]


@dataclass
class ForeignCheckpoint:
    """A checkpoint of another project as a configuration of ours, and the name in `weights` of each of our tensors."""

    origin: str
    channels: int
    autoencoder: AutoencoderConfig
    quantizer: VQConfig
    names: dict[str, str]
    weights: Weights
    image_size: tuple[int, int] | None = None


def to_tokenizer(checkpoint: ForeignCheckpoint) -> Tokenizer:
    """Build the tokenizer, in float32, after checking the shape of every tensor."""
    configs = (checkpoint.channels, checkpoint.autoencoder, checkpoint.quantizer)
    try:
        with torch.device("meta"):  # takes no memory, whatever sizes the file claims
            template = build_tokenizer(*configs).state_dict()
    except (RuntimeError, OverflowError, TypeError) as error:  # torch's errors for impossible sizes
        raise ArcvqError(
            f"{checkpoint.weights.file}: too large to build ({' '.join(str(error).split())[:80]})"
        ) from None
    shapes = {name: tuple(template[name].shape) for name in checkpoint.names}
    _check_shapes(checkpoint, shapes)
    tokenizer = build_tokenizer(*configs, image_size=checkpoint.image_size)
    state = {name: _read(checkpoint.weights, theirs, shapes[name]) for name, theirs in checkpoint.names.items()}
    tokenizer.load_state_dict(state | {"quantizer.step": tokenizer.quantizer.step})  # steps are counted from here
    return tokenizer.eval()


def _check_shapes(checkpoint: ForeignCheckpoint, expected: dict[str, Shape]) -> None:
    """Raise unless the file has the tensors of this network and no others."""
    weights, shapes = checkpoint.weights, checkpoint.weights.shapes
    pairs = {theirs: expected[ours] for ours, theirs in checkpoint.names.items()}
    wrong = [
        f"{name} of shape {list(shapes[name])} instead of {list(shape)}"
        for name, shape in pairs.items()
        if name in shapes and shapes[name] not in (shape, _without_kernel(shape))
    ]
    groups = {
        "missing": sorted(pairs.keys() - shapes.keys()),
        "unexpected": sorted(shapes.keys() - pairs.keys()),
        "of the wrong shape": sorted(wrong),
    }
    parts = [f"{len(names)} {what} (e.g. {names[0]})" for what, names in groups.items() if names]
    if parts:
        raise ArcvqError(f"{weights.file}: not a {checkpoint.origin} that arcvq can build: tensors {', '.join(parts)}")


def _without_kernel(shape: Shape) -> Shape:
    """The shape of a 1×1 convolution's weight as that of a linear layer."""
    return shape[:-2] if len(shape) == 4 and shape[-2:] == (1, 1) else shape


def _read(weights: Weights, name: str, shape: Shape) -> Tensor:
    """A tensor of the file in float32 and in our shape."""
    tensor = weights.read(name).to(torch.float32).reshape(shape)
    if not tensor.isfinite().all():
        raise ArcvqError(f"{weights.file}: {name} has NaN or infinite values: its training has diverged")
    return tensor


def dimension(weights: Weights, name: str, axis: int, origin: str) -> int:
    """A size of a tensor; raises if the file has no such tensor."""
    shape = weights.shapes.get(name, ())
    if axis >= len(shape) or not shape[axis]:
        raise ArcvqError(f"{weights.file}: not a {origin}: {name} is missing or has shape {list(shape)}")
    return shape[axis]


def count(weights: Weights, pattern: str) -> int:
    """How many tensors are named by `pattern` with 0, 1, 2, ... in it."""
    number = 0
    while pattern.format(number) in weights.shapes:
        number += 1
    return number
