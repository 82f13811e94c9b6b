"""For other libraries: quantizers in the form that their autoencoders expect, and tokens as they number them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from arcvq.errors import ArcvqError
from arcvq.quantizers import Quantizer

Info = tuple[Tensor, None, Tensor]


class TamingQuantizer(nn.Module):
    """Replaces the quantizer of taming-transformers' VQModel: `model.quantize = TamingQuantizer(ArcVQ(256, 1024))`.

    Returns `quantized, loss, (perplexity, None, tokens)`; the one-hot matrix in the middle is not made. Tokens are (B, h, w), as with
    `sane_index_shape=True`. In an eager loop nothing else is to be called: the update runs after each step of the optimizer that
    trains the quantizer.
    """

    def __init__(self, quantizer: Quantizer) -> None:
        super().__init__()
        quantizer.require_codebook()
        if quantizer.config.channel_last:
            raise ArcvqError("these models have latents (B, D, h, w): build the quantizer without channel_last")
        self.quantizer = quantizer

    def forward(self, latents: Tensor) -> tuple[Tensor, Tensor, Info]:
        if self.training and torch.is_grad_enabled() and self.quantizer._attachment is None:
            self.quantizer.attach(None)
        output = self.quantizer(latents)
        assert output.tokens is not None
        return output.quantized, output.loss, (output.stats["perplexity"], None, output.tokens)

    def get_codebook_entry(self, indices: Tensor, shape: Sequence[int] | None = None) -> Tensor:
        """Tokens, flat or in any shape, → quantized latents. `shape` is (B, h, w, D); without it, tokens are (B, *spatial)."""
        if shape is not None:
            heads = self.quantizer.config.heads
            indices = indices.reshape(*shape[:-1], *([heads] if heads > 1 else []))
        return self.quantizer.decode(indices)


class DiffusersQuantizer(TamingQuantizer):
    """Replaces the quantizer of diffusers' VQModel, which expects the same: `model.quantize = DiffusersQuantizer(ArcVQ(64, 512))`."""


def reversed_bits(tokens: Tensor, codebook_size: int) -> Tensor:
    """Tokens of `LFQ` as vector-quantize-pytorch's LFQ numbers them, and back: the first channel is our lowest bit and their highest."""
    bits = codebook_size.bit_length() - 1
    if codebook_size != 1 << bits:
        raise ArcvqError(f"codebook_size must be a power of two, as LFQ's is, got {codebook_size}")
    return torch.stack([(tokens >> bit & 1) << (bits - 1 - bit) for bit in range(bits)]).sum(dim=0)
