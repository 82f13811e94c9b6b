"""The UNet of latent diffusion. After Rombach et al., High-Resolution Image Synthesis with Latent Diffusion Models, CVPR 2022."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from torch import nn

from arcvq.errors import ArcvqError


def make_unet(
    channels: int,
    *,
    width: int,
    multipliers: Sequence[int],
    blocks: int,
    attention: Collection[int],
    head_width: int,
    context_width: int,
    groups: int,
    dropout: float = 0.0,
) -> nn.Module:
    """diffusers' UNet from and to this number of channels, untrained: it predicts 0.

    `unet(noisy, time, encoder_hidden_states=context, return_dict=False)[0]`, with values (B, channels, h, w), int64 times (B,) and a
    context (B, tokens, context_width), is the predicted noise.

    multipliers  of the width, one per level; each level after the first halves the sides, rounded up
    blocks       residual blocks in each level on the way down
    attention    downsampling factors at which a transformer block follows each residual block; the middle always has one
    """
    try:
        from diffusers import UNet2DConditionModel
    except ImportError as error:
        raise ArcvqError(
            f"latent diffusion needs diffusers ({str(error).splitlines()[0]}): pip install 'arcvq[generate]'"
        ) from error
    attends = [2**level in attention for level in range(len(multipliers))]
    widths = [width * multiplier for multiplier in multipliers]
    unet: Any = UNet2DConditionModel(
        in_channels=channels,
        out_channels=channels,
        block_out_channels=tuple(widths),
        layers_per_block=blocks,
        down_block_types=tuple("CrossAttnDownBlock2D" if each else "DownBlock2D" for each in attends),
        up_block_types=tuple("CrossAttnUpBlock2D" if each else "UpBlock2D" for each in reversed(attends)),
        cross_attention_dim=context_width,
        # Its name notwithstanding, this is the number of heads.
        attention_head_dim=tuple(max(1, each // head_width) for each in widths),
        norm_num_groups=groups,
        dropout=dropout,
    )
    for layer in last_layers(unet):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    return unet


def last_layers(unet: nn.Module) -> list[Any]:
    """The last layer of the network and of each block that adds to its input: zero at first, so that all blocks are identities.

    diffusers leaves them random.
    """
    names = {"ResnetBlock2D": "conv2", "Transformer2DModel": "proj_out", "UNet2DConditionModel": "conv_out"}
    kinds = [(module, names.get(type(module).__name__)) for module in unet.modules()]
    return [getattr(module, name) for module, name in kinds if name is not None]


def check_levels(height: int, width: int, levels: int, option: str) -> None:
    """Raise if a level would halve a side that is 1 already. `option`: what sets the number of levels."""
    side, fitting = min(height, width), 1
    while side > 1:
        side, fitting = -(-side // 2), fitting + 1
    if levels > fitting:
        raise ArcvqError(f"a grid of {height}×{width} has room for {fitting} levels: {option} has {levels}")
