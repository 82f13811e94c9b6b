"""Adapters for other libraries: quantizers that fit their autoencoders, and tokens in their numbering."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from arcvq.errors import ArcvqError
from arcvq.quantizers import Quantizer

Info = tuple[Tensor, None, Tensor]


class TamingQuantizer(nn.Module):
    """Replaces the quantizer of taming-transformers' VQModel: `model.quantize = TamingQuantizer(ArcVQ(256, 1024))`.

    Returns `quantized, loss, (perplexity, None, tokens)`, with None for the one-hot matrix. Tokens are (B, h, w), as with
    `sane_index_shape=True`. In an eager loop call nothing else: the quantizer is updated after each step of the optimizer that
    trains it.
    """

    def __init__(self, quantizer: Quantizer) -> None:
        super().__init__()
        quantizer.require_codebook()
        if quantizer.config.channel_last:
            raise ArcvqError("the latents of these models are (B, D, h, w): build the quantizer without channel_last")
        self.quantizer = quantizer

    def forward(self, latents: Tensor) -> tuple[Tensor, Tensor, Info]:
        """Latents (B, D, h, w) → quantized latents, loss, (perplexity, None, tokens)."""
        if self.training and torch.is_grad_enabled() and self.quantizer._attachment is None:
            self.quantizer.attach(None)
        output = self.quantizer(latents)
        assert output.tokens is not None
        return output.quantized, output.loss, (output.stats["perplexity"], None, output.tokens)

    def get_codebook_entry(self, indices: Tensor, shape: Sequence[int] | None = None) -> Tensor:
        """Quantized latents of tokens. With `shape` (B, h, w, D) tokens may be flat; without it they are (B, *spatial)."""
        if shape is not None:
            per_position = self.quantizer.tokens_per_position
            indices = indices.reshape(*shape[:-1], *([per_position] if per_position > 1 else []))
        return self.quantizer.decode(indices)


class DiffusersQuantizer(TamingQuantizer):
    """Replaces the quantizer of diffusers' VQModel: `model.quantize = DiffusersQuantizer(ArcVQ(64, 512))`."""


def reversed_bits(tokens: Tensor, codebook_size: int) -> Tensor:
    """Convert `LFQ` tokens to vector-quantize-pytorch's numbering, or back: the first channel is our lowest bit and their highest."""
    bits = codebook_size.bit_length() - 1
    if codebook_size != 1 << bits:
        raise ArcvqError(f"codebook_size must be a power of two, got {codebook_size}")
    return torch.stack([(tokens >> bit & 1) << (bits - 1 - bit) for bit in range(bits)]).sum(dim=0)
