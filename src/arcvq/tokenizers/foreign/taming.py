"""Checkpoints of taming-transformers' VQGAN, and of first stages of latent-diffusion, which have the same tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arcvq.config import read_yaml
from arcvq.errors import ArcvqError
from arcvq.functional import Metric
from arcvq.nets import VqganConfig
from arcvq.quantizers import VQConfig
from arcvq.tokenizers.foreign.checkpoint import ForeignCheckpoint, count, dimension
from arcvq.tokenizers.foreign.layers import CODEBOOK, TAMING, tensor_names
from arcvq.tokenizers.foreign.weights import Weights

ORIGIN = "VQGAN of taming-transformers"
# In the file beside the tokenizer: the discriminator and LPIPS, and running means of the weights.
LEFT_OUT = ("loss.", "model_ema.")
# Of every norm; no file says it.
GROUPS = 32


def is_taming(weights: Weights) -> bool:
    """Whether the names of the tensors are those of this project."""
    return (
        "encoder.down.0.block.0.norm1.weight" in weights.shapes
        or "first_stage_model.quant_conv.weight" in weights.shapes
    )


def read_taming(weights: Weights, config: Path | None, metric: Metric | None) -> ForeignCheckpoint:
    """The network that the tensors' shapes describe. The configuration is compared with it, and adds what no tensor says."""
    _check_quantizer(weights)
    weights = weights.without(*LEFT_OUT)
    autoencoder = _autoencoder(weights)
    channels = dimension(weights, "encoder.conv_in.weight", 1, ORIGIN)
    codes = dimension(weights, CODEBOOK, 0, ORIGIN)
    image_size = None
    if config is not None:
        parameters = _parameters(config)
        resolution = parameters["resolution"]
        _compare(_expected(autoencoder, channels, codes, resolution), parameters, config)
        image_size = (resolution, resolution)
        metric = metric or ("cosine" if "bbnr_alpha" in parameters else None)
    # The codebook has β and the commitment weight 1: the swapped weights, with which this project trains by default.
    quantizer = VQConfig(codebook_size=codes, metric=metric or "euclidean", legacy=True)
    names = {f"autoencoder.{ours}": theirs for ours, theirs in tensor_names(autoencoder, channels, TAMING).items()}
    names["quantizer.codebook"] = CODEBOOK
    return ForeignCheckpoint(ORIGIN, channels, autoencoder, quantizer, names, weights, image_size)


def _check_quantizer(weights: Weights) -> None:
    """Raise for quantizers with which the same network was trained elsewhere."""
    names, file = weights.shapes, weights.file
    if any(name.startswith("first_stage_model.") for name in names):
        raise ArcvqError(f"{file}: is a model on top of a tokenizer: give the checkpoint of its first stage")
    if "quantize.embed.weight" in names or "quantize.proj.weight" in names:
        raise ArcvqError(f"{file}: its quantizer is GumbelQuantize, which arcvq does not have: give a VQModel")
    if "quantize.used" in names:
        raise ArcvqError(
            f"{file}: its tokens are numbered anew (remap), which arcvq does not do: give one without remap"
        )
    if "quantize.embedding.embed_avg" in names or "quantize.embedding.cluster_size" in names:
        raise ArcvqError(f"{file}: its quantizer is EMAVectorQuantizer, whose running means arcvq does not read")
    if not any(name.startswith("quantize.") for name in names):
        raise ArcvqError(
            f"{file}: has no codebook (quantize.embedding.weight): expected a VQModel, not an AutoencoderKL"
        )


def _autoencoder(weights: Weights) -> VqganConfig:
    """The configuration of the network by the shapes of its tensors."""
    width = dimension(weights, "encoder.conv_in.weight", 0, ORIGIN)
    levels = count(weights, "encoder.down.{}.block.0.conv1.weight")
    widths = [dimension(weights, f"encoder.down.{level}.block.0.conv1.weight", 0, ORIGIN) for level in range(levels)]
    if width % GROUPS or any(each % width for each in widths):
        raise ArcvqError(
            f"{weights.file}: its levels are {widths} channels wide and its first layer {width}: expected multiples of "
            f"the first layer's, and that to be one of {GROUPS}"
        )
    blocks = count(weights, "encoder.down.0.block.{}.conv1.weight")
    decoder_blocks = count(weights, "decoder.up.0.block.{}.conv1.weight")
    attention = [2**level for level in range(levels) if f"encoder.down.{level}.attn.0.q.weight" in weights.shapes]
    return VqganConfig(
        latent_dim=dimension(weights, "quant_conv.weight", 0, ORIGIN),
        width=width,
        multipliers=tuple(each // width for each in widths),
        blocks=blocks,
        decoder_blocks=None if decoder_blocks == blocks + 1 else decoder_blocks,
        attention=tuple(attention),
        middle_attention="encoder.mid.attn_1.q.weight" in weights.shapes,
        z_channels=dimension(weights, "encoder.conv_out.weight", 0, ORIGIN),
        groups=GROUPS,
    )


def _expected(autoencoder: VqganConfig, channels: int, codes: int, resolution: int) -> dict[str, Any]:
    """What this project's configuration says of such a network."""
    return {
        "n_embed": codes,
        "embed_dim": autoencoder.latent_dim,
        "z_channels": autoencoder.z_channels,
        "in_channels": channels,
        "out_ch": channels,
        "ch": autoencoder.width,
        "ch_mult": list(autoencoder.multipliers),
        "num_res_blocks": autoencoder.blocks,
        "attn_resolutions": [resolution // factor for factor in autoencoder.attention],
    }


def _parameters(config: Path) -> dict[str, Any]:
    """The options of the model in a configuration, those of `ddconfig` among them."""
    data: Any = read_yaml(config)
    for key in ("model", "params"):  # a file may hold the inner mapping alone
        data = data.get(key, data)
        if not isinstance(data, Mapping):
            raise ArcvqError(f"{config}: {key}: expected a mapping of keys to values")
    network = data.get("ddconfig")
    if not isinstance(network, Mapping):
        raise ArcvqError(f"{config}: not the configuration of a {ORIGIN}: ddconfig is missing")
    parameters = {**data, **network}
    resolution = parameters.get("resolution")
    if not isinstance(resolution, int) or resolution < 1:
        raise ArcvqError(f"{config}: ddconfig.resolution: expected the side of an image, got {resolution!r}")
    levels, attended = parameters.get("ch_mult"), parameters.get("attn_resolutions")
    if isinstance(levels, list) and isinstance(attended, list):  # those that a level has, in the order of levels
        reached = [resolution // 2**level for level in range(len(levels))]
        parameters["attn_resolutions"] = [each for each in reached if each in attended]
    return parameters


def _compare(expected: Mapping[str, Any], parameters: Mapping[str, Any], config: Path) -> None:
    """Raise unless the configuration describes the tensors."""
    for name, value in expected.items():
        if parameters.get(name, value) != value:
            raise ArcvqError(
                f"{config}: {name} is {parameters[name]}, but the checkpoint's tensors say {value}: give its own configuration"
            )
