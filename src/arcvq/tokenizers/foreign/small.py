"""Checkpoints of the paper's small models, and of CVQ-VAE's, whose autoencoder is the same."""

from __future__ import annotations

from arcvq.errors import ArcvqError
from arcvq.functional import Metric
from arcvq.nets import SmallConfig
from arcvq.quantizers import VQConfig
from arcvq.tokenizers.foreign.checkpoint import ForeignCheckpoint, count, dimension
from arcvq.tokenizers.foreign.weights import Weights

ORIGIN = "small model of ArcVQ-VAE or CVQ-VAE"
CODEBOOK = "_vq_vae.embedding.weight"
# How often CVQ-VAE's codes were used: what moves codes in a training, and no part of the network.
USAGE = "_vq_vae.embed_prob"


def is_small(weights: Weights) -> bool:
    """Whether the names of the tensors are those of these projects."""
    return "_pre_vq_conv.weight" in weights.shapes


def read_small(weights: Weights, metric: Metric | None) -> ForeignCheckpoint:
    """The network that the tensors' shapes describe."""
    if metric is None and USAGE in weights.shapes:
        raise ArcvqError(
            f"{weights.file}: a CVQ-VAE, whose file does not say how codes are chosen: give --metric cosine (its program's "
            "default) or --metric euclidean (l2)"
        )
    blocks = count(weights, "_encoder._residual_stack._layers.{}._block.1.weight")
    inner = dimension(weights, "_encoder._residual_stack._layers.0._block.1.weight", 0, ORIGIN) if blocks else 1
    autoencoder = SmallConfig(
        latent_dim=dimension(weights, "_pre_vq_conv.weight", 0, ORIGIN),
        width=dimension(weights, "_encoder._conv_2.weight", 0, ORIGIN),
        residual_blocks=blocks,
        residual_width=inner,
    )
    # Neither ball nor ArcLoss: the file has no step count, and a ball of step 0 would shorten the codes at once.
    quantizer = VQConfig(codebook_size=dimension(weights, CODEBOOK, 0, ORIGIN), metric=metric or "cosine")
    channels = dimension(weights, "_encoder._conv_1.weight", 1, ORIGIN)
    names = {"quantizer.codebook": CODEBOOK}
    for ours, theirs in _modules(blocks).items():
        names |= {f"autoencoder.{ours}.{part}": f"{theirs}.{part}" for part in ("weight", "bias")}
    return ForeignCheckpoint(ORIGIN, channels, autoencoder, quantizer, names, weights.without(USAGE))


def _modules(blocks: int) -> dict[str, str]:
    """Their layer of each of ours, which are numbered with the activations between them."""
    pairs = {
        "encoder.0": "_encoder._conv_1",
        "encoder.2": "_encoder._conv_2",
        "encoder.4": "_encoder._conv_3",
        "encoder.6": "_pre_vq_conv",
        "decoder.0": "_decoder._conv_1",
        "decoder.2": "_decoder._conv_trans_1",
        "decoder.4": "_decoder._conv_trans_2",
    }
    for side, index in (("encoder", 5), ("decoder", 1)):
        for block in range(blocks):
            theirs = f"_{side}._residual_stack._layers.{block}._block"
            pairs |= {f"{side}.{index}.{block}.conv3": f"{theirs}.1", f"{side}.{index}.{block}.conv1": f"{theirs}.3"}
    return pairs
