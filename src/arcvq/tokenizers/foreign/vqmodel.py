"""The VQModel of diffusers: VQGAN's autoencoder, or MoVQ's, with a codebook that is searched by distance."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from arcvq.config import parse
from arcvq.errors import ArcvqError
from arcvq.functional import Metric
from arcvq.nets import MovqConfig, VqganConfig
from arcvq.quantizers import VQConfig
from arcvq.storage import read_json
from arcvq.tokenizers.foreign.checkpoint import ForeignCheckpoint
from arcvq.tokenizers.foreign.layers import CODEBOOK, DIFFUSERS, tensor_names
from arcvq.tokenizers.foreign.weights import Weights, read_weights

ORIGIN = "VQModel of diffusers"
CLASS = "VQModel"
WEIGHTS = ("diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.bin")
# Of a norm that the latents modulate, whatever norm_num_groups says.
SPATIAL_GROUPS = 32
# The layers of an attention in files of before 2023.
OLD_NAMES = {".query.": ".to_q.", ".key.": ".to_k.", ".value.": ".to_v.", ".proj_attn.": ".to_out.0."}


@dataclass(kw_only=True)
class VQModelConfig:
    """The options of diffusers' VQModel, with its defaults."""

    in_channels: int = 3
    out_channels: int = 3
    down_block_types: tuple[str, ...] = ("DownEncoderBlock2D",)
    up_block_types: tuple[str, ...] = ("UpDecoderBlock2D",)
    block_out_channels: tuple[int, ...] = (64,)
    layers_per_block: int = 1
    act_fn: str = "silu"
    latent_channels: int = 3
    sample_size: int = 32
    num_vq_embeddings: int = 256
    norm_num_groups: int = 32
    vq_embed_dim: int | None = None
    scaling_factor: float = 0.18215
    norm_type: Literal["group", "spatial"] = "group"
    mid_block_add_attention: bool = True
    lookup_from_codebook: bool = False
    force_upcast: bool = False


def read_vqmodel(folder: Path, metric: Metric | None) -> ForeignCheckpoint:
    """The network of a folder that `save_pretrained` has written."""
    data = read_json(folder / "config.json", f"the folder of a {ORIGIN}")
    if data.get("_class_name") != CLASS:
        arcvq = " (it is a tokenizer of arcvq already)" if "format" in data and "quantizer" in data else ""
        raise ArcvqError(
            f"{folder / 'config.json'}: _class_name is {data.get('_class_name')!r}, expected {CLASS!r}{arcvq}"
        )
    try:
        config = parse(VQModelConfig, {name: value for name, value in data.items() if not name.startswith("_")})
        autoencoder = _autoencoder(config)
    except ArcvqError as error:
        raise ArcvqError(f"{folder / 'config.json'}: {error}") from None
    channels = config.in_channels
    names = {f"autoencoder.{ours}": theirs for ours, theirs in tensor_names(autoencoder, channels, DIFFUSERS).items()}
    names["quantizer.codebook"] = CODEBOOK
    # The swapped weights, with which this project's quantizer is built by default.
    quantizer = VQConfig(codebook_size=config.num_vq_embeddings, metric=metric or "euclidean", legacy=True)
    weights = _read_weights(folder).renamed(_new_name)
    return ForeignCheckpoint(ORIGIN, channels, autoencoder, quantizer, names, weights)


def _read_weights(folder: Path) -> Weights:
    """Read the weights from the checkpoint file in this folder."""
    file = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if file is None:
        raise ArcvqError(f"{folder}: neither {WEIGHTS[0]} nor {WEIGHTS[1]} is there: expected the weights in one file")
    return read_weights(file)


def _new_name(name: str) -> str:
    """The name of a tensor since 2023."""
    for old, new in OLD_NAMES.items():
        if ".attentions." in name:
            name = name.replace(old, new)
    return name


def _autoencoder(config: VQModelConfig) -> VqganConfig:
    """Our configuration of the same network; an error if there is none."""
    widths = config.block_out_channels
    latent_dim = config.latent_channels if config.vq_embed_dim is None else config.vq_embed_dim
    down = _attention(config.down_block_types, "DownEncoderBlock2D", "AttnDownEncoderBlock2D")
    up = _attention(config.up_block_types[::-1], "UpDecoderBlock2D", "AttnUpDecoderBlock2D")
    if not len(widths) == len(config.down_block_types) == len(config.up_block_types) > 0:
        raise ArcvqError("block_out_channels, down_block_types and up_block_types must have one entry a level")
    if down != up:
        raise ArcvqError("down_block_types and up_block_types must have attention at the same levels")
    if config.act_fn not in ("silu", "swish"):
        raise ArcvqError(f"act_fn must be silu, got {config.act_fn!r}")
    if config.in_channels != config.out_channels:
        raise ArcvqError(
            f"in_channels and out_channels must be equal, got {config.in_channels} and {config.out_channels}"
        )
    if widths[0] < 1 or any(width % widths[0] for width in widths):
        raise ArcvqError(f"block_out_channels must be multiples of the first, got {list(widths)}")
    if config.norm_type == "spatial" and (config.norm_num_groups, latent_dim) != (
        SPATIAL_GROUPS,
        config.latent_channels,
    ):
        raise ArcvqError(
            f"norm_type spatial needs norm_num_groups {SPATIAL_GROUPS} and vq_embed_dim equal to latent_channels"
        )
    cls = MovqConfig if config.norm_type == "spatial" else VqganConfig
    return cls(
        latent_dim=latent_dim,
        width=widths[0],
        multipliers=tuple(width // widths[0] for width in widths),
        blocks=config.layers_per_block,
        attention=down,
        middle_attention=config.mid_block_add_attention,
        z_channels=config.latent_channels,
        groups=config.norm_num_groups,
    )


def _attention(types: tuple[str, ...], plain: str, attended: str) -> tuple[int, ...]:
    """The downsampling factors of the levels with attention."""
    for name in types:
        if name not in (plain, attended):
            raise ArcvqError(f"a level is {name!r}: expected {plain} or {attended}")
    return tuple(2**level for level, name in enumerate(types) if name == attended)


def block_types(config: VqganConfig) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The types of the encoder's and the decoder's blocks that put attention at the levels where our configuration has it."""
    attended = [config.has_attention(level) for level in range(len(config.multipliers))]
    down = tuple("AttnDownEncoderBlock2D" if each else "DownEncoderBlock2D" for each in attended)
    up = tuple("AttnUpDecoderBlock2D" if each else "UpDecoderBlock2D" for each in attended[::-1])
    return down, up
