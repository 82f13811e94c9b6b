"""Whether two tokenizers do the same."""

import torch
from torch import Tensor

from arcvq import Tokenizer


def some_images(channels: int = 3, height: int = 16, width: int = 24) -> Tensor:
    return (
        torch.rand(2, channels, height, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2 - 1
    )


def check_same(tokenizer: Tokenizer, images: Tensor, latents: Tensor, tokens: Tensor, decoded: Tensor) -> None:
    """In float64, so that only rounding differs."""
    tokenizer = tokenizer.double()
    torch.testing.assert_close(tokenizer.latents(images), latents, rtol=1e-10, atol=1e-10)
    assert len(tokens.unique()) > 4
    assert torch.equal(tokenizer.encode(images), tokens)
    torch.testing.assert_close(tokenizer.decode(tokens), decoded.clamp(-1, 1), rtol=1e-10, atol=1e-10)


def set_codes(codebook: Tensor, latents: Tensor) -> None:
    """Codes near the latents, of different lengths: so many are used, and distance and angle choose others."""
    rows = latents.movedim(1, -1).reshape(-1, latents.shape[1])
    picked = rows[torch.randperm(len(rows))[: len(codebook)]]
    scales = 0.4 * torch.rand(len(picked), 1, dtype=picked.dtype) + 0.8
    codebook.copy_((picked * scales).to(codebook.dtype))
