"""Writes a tokenizer as a diffusers folder: a VQModel that decodes its tokens to the same images."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from arcvq.config import to_dict
from arcvq.errors import ArcvqError
from arcvq.nets import MovqAutoencoder, MovqConfig, VqganAutoencoder, VqganConfig
from arcvq.quantizers import VQ, Quantizer
from arcvq.storage import atomic_folder, write_bytes, write_json, write_tensors
from arcvq.tokenizers.foreign.layers import CODEBOOK, DIFFUSERS, tensor_names
from arcvq.tokenizers.foreign.vqmodel import CLASS, SPATIAL_GROUPS, WEIGHTS, VQModelConfig, block_types
from arcvq.tokenizers.tokenizer import Tokenizer


def export_diffusers(tokenizer: Tokenizer, folder: Path, decoder_only: bool = False) -> bool:
    """Write config.json, the weights and a README, which `diffusers.VQModel.from_pretrained(folder)` loads.

    VQModel finds codes by distance. A tokenizer that chooses them by angle encodes to other tokens there, and is exported only when
    `decoder_only` says that nobody encodes there. Returns whether its tokens are the same.
    """
    config = _vqmodel_config(tokenizer)
    codes = _codes(tokenizer.quantizer)
    same_search = _same_search(tokenizer.quantizer)
    if not same_search and not decoder_only:
        raise ArcvqError(
            "this tokenizer chooses codes by cosine, and VQModel by distance: it would encode to other tokens; "
            "add --decoder-only to export it for decoding"
        )
    tensors = {CODEBOOK: codes}
    state = tokenizer.autoencoder.state_dict()
    autoencoder = tokenizer.autoencoder.config
    assert isinstance(autoencoder, VqganConfig)
    for ours, theirs in tensor_names(autoencoder, tokenizer.channels, DIFFUSERS).items():
        is_linear = ".to_" in theirs and state[ours].dim() == 4  # a 1×1 convolution of ours
        tensors[theirs] = state[ours].flatten(1) if is_linear else state[ours]
    with atomic_folder(folder) as partial:
        write_json(partial / "config.json", {"_class_name": CLASS, **to_dict(config)})
        write_tensors(partial / WEIGHTS[0], {name: tensor.float() for name, tensor in tensors.items()})
        write_bytes(partial / "README.md", _readme(tokenizer, same_search).encode())
    return same_search


def _vqmodel_config(tokenizer: Tokenizer) -> VQModelConfig:
    """The options of the VQModel that is this autoencoder; an error if there is none."""
    autoencoder, config = tokenizer.autoencoder, tokenizer.autoencoder.config
    if type(autoencoder) not in (VqganAutoencoder, MovqAutoencoder):
        raise ArcvqError(f"diffusers has no {type(autoencoder).__name__}: its VQModel is the autoencoder vqgan or movq")
    assert isinstance(config, VqganConfig)
    z_channels = config.z_channels or config.latent_dim
    if config.multipliers[0] != 1:
        raise ArcvqError(
            f"VQModel's first level is as wide as its first layer: multipliers begin with 1, not {config.multipliers[0]}"
        )
    if config.decoder_blocks not in (None, config.blocks + 1):
        raise ArcvqError(
            f"VQModel's decoder has one block more in a level than its encoder: {config.blocks + 1}, not {config.decoder_blocks}"
        )
    if isinstance(config, MovqConfig):
        if config.condition_conv:
            raise ArcvqError("VQModel's norms have no 3×3 convolution of the latents: condition_conv does not fit")
        if config.groups != SPATIAL_GROUPS or z_channels != config.latent_dim:
            raise ArcvqError(
                f"VQModel's norms of latents need groups {SPATIAL_GROUPS} and z_channels equal to latent_dim"
            )
    size = 32 if tokenizer.image_size is None else tokenizer.image_size[0]
    down_blocks, up_blocks = block_types(config)
    return VQModelConfig(
        in_channels=tokenizer.channels,
        out_channels=tokenizer.channels,
        block_out_channels=tuple(config.widths),
        layers_per_block=config.blocks,
        latent_channels=z_channels,
        vq_embed_dim=config.latent_dim,
        num_vq_embeddings=tokenizer.quantizer.config.codebook_size,
        norm_num_groups=config.groups,
        norm_type="spatial" if isinstance(config, MovqConfig) else "group",
        mid_block_add_attention=config.middle_attention,
        lookup_from_codebook=True,  # decode(tokens, force_not_quantize=True, shape=...) takes tokens
        sample_size=size,
        down_block_types=down_blocks,
        up_block_types=up_blocks,
    )


@torch.no_grad()
def _codes(quantizer: Quantizer) -> Tensor:
    """What the decoder gets for each token (K, D); an error unless a token is one vector of the latents."""
    what = type(quantizer).__name__
    if not isinstance(quantizer, VQ):
        raise ArcvqError(f"VQModel has one codebook of vectors, found by distance: {what} does not fit")
    if quantizer.tokens_per_position > 1 or not isinstance(quantizer.project_in, nn.Identity):
        raise ArcvqError(
            f"VQModel has one token for each latent: {what} with heads or a code_dim of its own does not fit"
        )
    return quantizer.lookup(torch.arange(quantizer.config.codebook_size, device=quantizer.codebook.device))


def _same_search(quantizer: Quantizer) -> bool:
    """Whether the nearest code by distance is the one that is chosen: by distance, or by angle among unit vectors."""
    assert isinstance(quantizer, VQ)
    return quantizer.config.metric == "euclidean" or quantizer.config.output == "unit"


def _readme(tokenizer: Tokenizer, same_search: bool) -> str:
    """How the folder is used."""
    encode = (
        "tokens = model.quantize(model.encode(images).latents)[2][2].view(batch, height, width)"
        if same_search
        else "# The tokens of `model.quantize` are not this tokenizer's: it chooses codes by cosine, VQModel by distance.\n"
        "latents = torch.nn.functional.normalize(model.encode(images).latents, dim=1)\n"
        "codes = torch.nn.functional.normalize(model.quantize.embedding.weight, dim=1)\n"
        'tokens = torch.einsum("bdhw,kd->bhwk", latents, codes).argmax(dim=-1)'
    )
    return f"""---
library_name: diffusers
tags: [image-tokenizer, vector-quantization, arcvq]
---
# {tokenizer.system or "arcvq"} tokenizer for diffusers

Images are float tensors (B, {tokenizer.channels}, H, W) in [-1, 1]; their sides are multiples of {tokenizer.downsampling}.

```python
import torch
from diffusers import VQModel

model = VQModel.from_pretrained("PATH")
{encode}
images = model.decode(tokens, force_not_quantize=True, shape=(*tokens.shape, {tokenizer.quantizer.dim})).sample.clamp(-1, 1)
```
"""
