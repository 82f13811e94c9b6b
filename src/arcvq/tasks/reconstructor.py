"""The function that metrics call to reconstruct images with a tokenizer."""

from __future__ import annotations

import torch
from torch import Tensor

from arcvq.functional.precision import ieee_convolutions
from arcvq.quantizers import Continuous
from arcvq.tokenizers import Tokenizer


class Reconstructor:
    """images → (reconstruction, tokens), without gradients, in float32. Adds up the rate of continuous latents.

    Tokens are rows of `quantizer.codebook`, so that those of several codebooks are not mixed up.

    Without `quantize` the decoder gets the latents themselves, and there are no tokens.
    """

    def __init__(self, tokenizer: Tokenizer, quantize: bool = True) -> None:
        self.tokenizer, self.quantize, self.images, self.nats = tokenizer, quantize, 0, 0.0

    @torch.no_grad()
    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        tokenizer = self.tokenizer
        with ieee_convolutions():
            latents = tokenizer.latents(images)
            if not self.quantize:
                return tokenizer.to_images(latents).float(), None
            quantized = tokenizer.quantize(latents)
            reconstruction = tokenizer.to_images(quantized.quantized)
        if isinstance(tokenizer.quantizer, Continuous):
            self.images += len(images)
            vectors = len(quantized.update_inputs.latents) / tokenizer.quantizer.positions
            self.nats += float(quantized.stats["vector_rate"]) * vectors
        tokens = quantized.tokens
        return reconstruction.float(), None if tokens is None else tokenizer.quantizer.code_indices(tokens)

    @property
    def metrics(self) -> dict[str, float]:
        """{"rate": nats per image} for continuous latents; empty for tokens."""
        return {"rate": self.nats / self.images} if self.images else {}
