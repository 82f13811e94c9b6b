"""Tokenizers of other projects: their checkpoints become ours, and ours become diffusers folders and ONNX files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from arcvq.errors import ArcvqError
from arcvq.functional import Metric
from arcvq.tokenizers.foreign.checkpoint import ForeignCheckpoint, to_tokenizer
from arcvq.tokenizers.foreign.small import is_small, read_small
from arcvq.tokenizers.foreign.taming import is_taming, read_taming
from arcvq.tokenizers.foreign.vqmodel import read_vqmodel
from arcvq.tokenizers.foreign.weights import read_weights
from arcvq.tokenizers.tokenizer import Tokenizer

__all__ = ["Imported", "import_tokenizer"]


@dataclass(frozen=True)
class Imported:
    """A tokenizer, and what it was."""

    tokenizer: Tokenizer
    origin: str
    metric: Metric  # how codes are chosen


def import_tokenizer(source: Path, config: Path | None = None, metric: Metric | None = None) -> Imported:
    """The tokenizer of another project's checkpoint: the same tokens and the same images.

    `source` is a file of taming-transformers, ArcVQ-VAE or CVQ-VAE, or a folder of diffusers. `config` is taming-transformers' YAML.
    `metric` says how codes are chosen, where the files do not.
    """
    if not source.exists():
        raise ArcvqError(f"{source}: no such file or folder")
    if source.is_dir():
        if config is not None:
            raise ArcvqError("a folder of diffusers has its own configuration: leave --config out")
        return _built(read_vqmodel(source, metric))
    weights = read_weights(source)
    if is_small(weights):
        if config is not None:
            raise ArcvqError(f"{source}: a small model has no configuration: leave --config out")
        return _built(read_small(weights, metric))
    if is_taming(weights):
        return _built(read_taming(weights, config, metric))
    raise ArcvqError(
        f"{source}: has tensors such as {min(weights.shapes)}, and is no checkpoint that arcvq knows: expected a VQGAN of "
        "taming-transformers, or a small model of ArcVQ-VAE or CVQ-VAE"
    )


def _built(checkpoint: ForeignCheckpoint) -> Imported:
    return Imported(to_tokenizer(checkpoint), checkpoint.origin, checkpoint.quantizer.metric)
