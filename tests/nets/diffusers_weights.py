"""The weights of diffusers' VQModel for our autoencoders, which are the same networks."""

from typing import Any

import torch
from torch import Tensor, nn

SPATIAL_NORM = {"norm_layer": "norm", "conv_y": "gamma", "conv_b": "beta"}


def perturb(model: nn.Module) -> None:
    """Move every weight off its initial value: scales of 1 and biases of 0 would hide mistakes."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))


def from_diffusers(theirs: nn.Module) -> dict[str, Tensor]:
    """The weights of a diffusers VQModel, without its codebook, by the names of our autoencoder.

    Our layers are theirs in the order of execution, so that pairs of modules follow from one walk over both.
    """
    pairs: dict[str, nn.Module] = {}

    def add_block(name: str, resnet: Any, attention: Any = None) -> None:
        pairs.update({f"{name}.{part}": getattr(resnet, part) for part in ("norm1", "conv1", "norm2", "conv2")})
        if resnet.conv_shortcut is not None:
            pairs[f"{name}.shortcut"] = resnet.conv_shortcut
        if attention is not None:
            layers = (attention.group_norm or attention.spatial_norm, attention.to_q, attention.to_k, attention.to_v)
            names = ("norm", "q", "k", "v", "proj_out")
            pairs.update({f"{name}.attention.{a}": b for a, b in zip(names, (*layers, attention.to_out[0]))})

    def add_half(side: str, half: Any, levels: Any, resamplers: str) -> None:
        index = 0
        for level in levels:
            attentions = getattr(level, "attentions", [None] * len(level.resnets))
            for resnet, attention in zip(level.resnets, attentions):
                add_block(f"{side}.layers.{index}", resnet, attention)
                index += 1
            if getattr(level, resamplers) is not None:
                pairs[f"{side}.layers.{index}.conv"] = getattr(level, resamplers)[0].conv
                index += 1
        add_block(f"{side}.middle.0", half.mid_block.resnets[0], half.mid_block.attentions[0])
        add_block(f"{side}.middle.1", half.mid_block.resnets[1])
        pairs[f"{side}.conv_in"], pairs[f"{side}.conv_out"] = half.conv_in, half.conv_out
        pairs[f"{side}.norm_out"] = half.conv_norm_out

    model: Any = theirs
    add_half("encoder", model.encoder, model.encoder.down_blocks, "downsamplers")
    add_half("decoder", model.decoder, model.decoder.up_blocks, "upsamplers")
    pairs["encoder.quant_conv"], pairs["decoder.post_quant_conv"] = model.quant_conv, model.post_quant_conv
    weights = {}
    for name, module in pairs.items():
        for key, value in module.state_dict().items():
            is_linear = ".attention." in name and key == "weight" and value.dim() == 2
            for their_name, our_name in SPATIAL_NORM.items():
                key = key.replace(their_name, our_name)
            weights[f"{name}.{key}"] = value[:, :, None, None] if is_linear else value
    return weights
