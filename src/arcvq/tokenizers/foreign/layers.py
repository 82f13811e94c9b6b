"""Where other projects keep the layers of VQGAN's autoencoder: the same network under other names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from arcvq.nets import AUTOENCODERS, VqganConfig

# A norm that the latents modulate has layers of its own.
MODULATED = {"norm": "norm_layer", "gamma": "conv_y", "beta": "conv_b"}


@dataclass(frozen=True)
class LayerNames:
    """The names of layers. {level} is 0 at the image's size, {up} at the latents'; {side} is encoder or decoder."""

    down_block: str
    down_attention: str
    downsample: str
    up_block: str
    up_attention: str
    upsample: str
    middle_blocks: tuple[str, str]
    middle_attention: str
    norm_out: str
    shortcut: str
    attention: tuple[str, str, str, str, str]  # norm, query, key, value, output


TAMING = LayerNames(
    down_block="encoder.down.{level}.block.{block}",
    down_attention="encoder.down.{level}.attn.{block}",
    downsample="encoder.down.{level}.downsample.conv",
    up_block="decoder.up.{level}.block.{block}",
    up_attention="decoder.up.{level}.attn.{block}",
    upsample="decoder.up.{level}.upsample.conv",
    middle_blocks=("{side}.mid.block_1", "{side}.mid.block_2"),
    middle_attention="{side}.mid.attn_1",
    norm_out="{side}.norm_out",
    shortcut="nin_shortcut",
    attention=("norm", "q", "k", "v", "proj_out"),
)
DIFFUSERS = LayerNames(
    down_block="encoder.down_blocks.{level}.resnets.{block}",
    down_attention="encoder.down_blocks.{level}.attentions.{block}",
    downsample="encoder.down_blocks.{level}.downsamplers.0.conv",
    up_block="decoder.up_blocks.{up}.resnets.{block}",
    up_attention="decoder.up_blocks.{up}.attentions.{block}",
    upsample="decoder.up_blocks.{up}.upsamplers.0.conv",
    middle_blocks=("{side}.mid_block.resnets.0", "{side}.mid_block.resnets.1"),
    middle_attention="{side}.mid_block.attentions.0",
    norm_out="{side}.conv_norm_out",
    shortcut="conv_shortcut",
    attention=("group_norm", "to_q", "to_k", "to_v", "to_out.0"),
)
# The codebook of both, beside the quantizer's of ours.
CODEBOOK = "quantize.embedding.weight"


def tensor_names(config: VqganConfig, channels: int, names: LayerNames) -> dict[str, str]:
    """The other project's name of each tensor of an autoencoder, by ours."""
    modules = dict(_modules(config, names))
    with torch.device("meta"):
        ours = AUTOENCODERS.build(config, channels).state_dict()
    found = {}
    for name in ours:
        module = max((each for each in modules if name.startswith(f"{each}.")), key=len)
        first, _, rest = name.removeprefix(f"{module}.").partition(".")
        found[name] = f"{modules[module]}.{MODULATED[first]}.{rest}" if rest else f"{modules[module]}.{first}"
    return found


def _modules(config: VqganConfig, names: LayerNames) -> Iterator[tuple[str, str]]:
    """Pairs of modules, ours and theirs. Our layers are numbered in the order of execution."""
    levels = len(config.multipliers)
    decoder_blocks = config.blocks + 1 if config.decoder_blocks is None else config.decoder_blocks
    index = 0
    for level in range(levels):
        if level:
            yield f"encoder.layers.{index}.conv", names.downsample.format(level=level - 1)
            index += 1
        for block in range(config.blocks):
            place = {"level": level, "block": block}
            attention = names.down_attention.format(**place) if config.has_attention(level) else None
            yield from _block(f"encoder.layers.{index}", names.down_block.format(**place), attention, names)
            index += 1
    index, spatial = 0, _for_modulated_norms(config, names)
    for level in reversed(range(levels)):
        up = levels - 1 - level
        for block in range(decoder_blocks):
            place = {"level": level, "up": up, "block": block}
            attention = names.up_attention.format(**place) if config.has_attention(level) else None
            yield from _block(f"decoder.layers.{index}", names.up_block.format(**place), attention, spatial)
            index += 1
        if level:
            yield f"decoder.layers.{index}.conv", names.upsample.format(level=level, up=up)
            index += 1
    for side, own in (("encoder", names), ("decoder", spatial)):
        first, second = (name.format(side=side) for name in own.middle_blocks)
        attention = own.middle_attention.format(side=side) if config.middle_attention else None
        yield from _block(f"{side}.middle.0", first, attention, own)
        yield from _block(f"{side}.middle.1", second, None, own)
        yield f"{side}.norm_out", own.norm_out.format(side=side)
        yield from ((f"{side}.{conv}", f"{side}.{conv}") for conv in ("conv_in", "conv_out"))
    yield "encoder.quant_conv", "quant_conv"
    yield "decoder.post_quant_conv", "post_quant_conv"


def _block(ours: str, theirs: str, attention: str | None, names: LayerNames) -> Iterator[tuple[str, str]]:
    """Pairs of modules of a residual block and the attention after it."""
    for part in ("norm1", "conv1", "norm2", "conv2"):
        yield f"{ours}.{part}", f"{theirs}.{part}"
    yield f"{ours}.shortcut", f"{theirs}.{names.shortcut}"
    if attention is not None:
        for part, their_part in zip(("norm", "q", "k", "v", "proj_out"), names.attention):
            yield f"{ours}.attention.{part}", f"{attention}.{their_part}"


def _for_modulated_norms(config: VqganConfig, names: LayerNames) -> LayerNames:
    """The names in a decoder: in diffusers, the norm of an attention has another name if the latents modulate it."""
    if names is DIFFUSERS and type(config) is not VqganConfig:
        return replace(names, attention=("spatial_norm", *names.attention[1:]))
    return names
