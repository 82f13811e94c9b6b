"""Makes a trained tokenizer's codebook smaller, without training: k-means centres take the place of its codes."""

from __future__ import annotations

import copy
from dataclasses import fields, replace
from typing import Literal

import torch
from torch import Tensor

from arcvq.errors import ArcvqError
from arcvq.functional import Metric, assign, token_counts, token_sums
from arcvq.quantizers import QUANTIZERS, VQ, SimVQ, VQConfig
from arcvq.quantizers.kmeans import kmeans
from arcvq.tokenizers.tokenizer import Tokenizer

Space = Literal["projected", "raw"]


@torch.no_grad()
def reduce_codebook(tokenizer: Tokenizer, codes: int, seed: int = 0, space: Space = "projected") -> Tokenizer:
    """A copy of the tokenizer with `codes` codes: the k-means centres of its own, by angle if it chooses codes by angle.

    A centre by angle gets the mean length of its codes. `space` matters for codes that a layer projects (SimVQ, ProjectedVQ):
    projected, the centres of the projected codes become those of a plain VQ; raw, the centres of what is projected stay behind the
    layer. As many codes as there are keep every code.
    """
    quantizer = _check(tokenizer, codes, space)
    config, metric = quantizer.config, quantizer.config.metric
    if isinstance(quantizer, SimVQ) and space == "raw":
        smaller: VQ = QUANTIZERS.build(replace(config, codebook_size=codes), quantizer.dim)  # type: ignore[assignment]
        assert isinstance(smaller, SimVQ)
        _copy_state(quantizer, smaller)
        centres, owners = _centres(quantizer.basis, codes, metric, seed)
        smaller.basis.copy_(centres)
        if config.ball is not None:  # of codes that share a centre, their mean
            sums, sizes = token_sums(quantizer.scale, owners, codes), token_counts(owners, codes).unsqueeze(1)
            smaller.scale.copy_(torch.where(sizes > 0, sums / sizes.clamp(min=1), quantizer.scale.mean()))
    else:
        kind = _plain(config) if isinstance(quantizer, SimVQ) else config
        smaller = QUANTIZERS.build(replace(kind, codebook_size=codes), quantizer.dim)  # type: ignore[assignment]
        _copy_state(quantizer, smaller)
        smaller.set_codes_(_centres(quantizer.codebook, codes, metric, seed)[0])
    autoencoder = copy.deepcopy(tokenizer.autoencoder)
    return Tokenizer(autoencoder, smaller, image_size=tokenizer.image_size, system=tokenizer.system).eval()


def _check(tokenizer: Tokenizer, codes: int, space: str) -> VQ:
    """The tokenizer's quantizer; an error unless its codes can be replaced by this many."""
    quantizer = tokenizer.quantizer
    if not isinstance(quantizer, VQ):  # a stack of autoencoders never has one
        what = type(quantizer).__name__
        raise ArcvqError(
            f"only a codebook of single vectors (VQ and what derives from it) can be reduced, and this is {what}"
        )
    if space not in ("projected", "raw"):
        raise ArcvqError(f"space must be projected or raw, got {space!r}")
    size = quantizer.config.codebook_size
    if not 1 <= codes <= size:
        raise ArcvqError(f"the codebook has {size} codes and can be reduced to 1 to {size} codes, not to {codes}")
    return quantizer


def _plain(config: VQConfig) -> VQConfig:
    """The options that a plain VQ shares with this configuration."""
    return VQConfig(**{field.name: getattr(config, field.name) for field in fields(VQConfig)})


def _copy_state(source: VQ, target: VQ) -> None:
    """Copy what does not depend on the number of codes: the step count, the layers around the codebook."""
    own = target.state_dict()
    given = {
        name: value for name, value in source.state_dict().items() if name in own and own[name].shape == value.shape
    }
    target.load_state_dict({**own, **given})
    target.to(source.codebook)


def _centres(codes: Tensor, number: int, metric: Metric, seed: int) -> tuple[Tensor, Tensor]:
    """The centres of the codes (number, D), and the centre that each code (K,) belongs to."""
    if number == len(codes):
        return codes.detach().clone(), torch.arange(number, device=codes.device)
    centres = kmeans(codes, number, metric=metric, seed=seed)
    owners = assign(codes, centres, metric)
    if metric == "cosine":
        norms = torch.linalg.vector_norm(codes.float(), dim=1, keepdim=True)
        sizes = token_counts(owners, number).unsqueeze(1)
        lengths = token_sums(norms, owners, number) / sizes.clamp(min=1)
        centres = centres * torch.where(sizes > 0, lengths, norms.mean())
    return centres.to(codes.dtype), owners
