"""A look at the model along the way: how well it reconstructs the test set and what its codebook does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arcvq.data import Images
from arcvq.functional.precision import ieee_convolutions
from arcvq.metrics import EXACT, evaluate
from arcvq.quantizers import Continuous
from arcvq.storage import write_tensors
from arcvq.tokenizers import Tokenizer

QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


def observe(tokenizer: Tokenizer, images: Images) -> tuple[dict[str, Any], Tensor | None]:
    """Metrics for a line of metrics.jsonl, and how many tokens fell on each code, if there are any.

    Changes nothing: not even the mode, or what is drawn next.
    """
    was_training = tokenizer.training
    tokenizer.eval()
    reconstruct = Reconstructor(tokenizer)
    try:
        result = evaluate(
            reconstruct,
            images,
            protocol=EXACT,
            codebook=tokenizer.quantizer.codebook,
            device=tokenizer.device,
            metrics=["l1", "mse", "psnr", "usage", "perplexity"],
        )
    finally:
        tokenizer.train(was_training)
    return {**result.metrics, **reconstruct.metrics, **_codebook_state(tokenizer)}, result.counts


class Reconstructor:
    """What `evaluate` calls: images → (reconstruction, tokens), without gradients. Adds up what a continuous bottleneck's latents
    cost meanwhile."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.images, self.nats = tokenizer, 0, 0.0

    @torch.no_grad()
    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        # The plain forward, in float32, whatever compilation or autocast the training has wrapped around the call.
        with ieee_convolutions():
            reconstruction, quantized = type(self.tokenizer).forward(self.tokenizer, images)
        if isinstance(self.tokenizer.quantizer, Continuous):
            self.images += len(images)
            vectors = len(quantized.record.latents) / self.tokenizer.quantizer.positions
            self.nats += float(quantized.stats["vector_rate"]) * vectors
        return reconstruction.float(), quantized.tokens

    @property
    def metrics(self) -> dict[str, float]:
        """The rate: nats an image."""
        return {"rate": self.nats / self.images} if self.images else {}


def save_codebook(folder: Path, step: int, tokenizer: Tokenizer, counts: Tensor | None) -> None:
    """codebooks/step-*.safetensors: figures need history. Nothing where there are no codes."""
    codebook = tokenizer.quantizer.codebook
    if codebook is not None and counts is not None:
        tensors = {"codebook": codebook.float(), "counts": counts.to(torch.int64)}
        write_tensors(folder / f"step-{step:08d}.safetensors", tensors)


@torch.no_grad()
def _codebook_state(tokenizer: Tokenizer) -> dict[str, Any]:
    quantizer = tokenizer.quantizer
    if quantizer.codebook is None:
        return {}
    norms = torch.linalg.vector_norm(quantizer.codebook.float(), dim=1)
    quantiles = torch.quantile(norms, torch.tensor(QUANTILES, device=norms.device)).tolist()
    state: dict[str, Any] = {"norm_quantiles": quantiles, "clipped_share": None}
    samp = getattr(quantizer, "samp", None)
    radius = samp.radius(quantizer.step) if samp is not None else None
    if radius is not None:
        state["ball_radius"] = float(radius)
        # A bounded code sits on the sphere, up to rounding.
        state["clipped_share"] = float((norms >= radius * (1 - 1e-5)).float().mean())
    return state
