"""Residual quantization (RQ-VAE, Lee et al., CVPR 2022): each code is chosen for what the codes before it leave over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from arcvq.config import Choice
from arcvq.errors import ArcvqError
from arcvq.functional import rotate, straight_through
from arcvq.functional.precision import compute_dtype
from arcvq.functional.relaxed import distance_logits, gumbel
from arcvq.quantizers.codebooks import CODEBOOKS, MAX_CODEBOOKS, Nested, NestedConfig
from arcvq.quantizers.emavq import EMAVQConfig
from arcvq.quantizers.quantized import UpdateInputs
from arcvq.quantizers.vq import VQConfig


@dataclass(kw_only=True)
class ResidualVQConfig(NestedConfig):
    """Options of ResidualVQ beyond those every quantizer has.

    depth     how many codes are added up for each vector, each with its token
    shared    one codebook for all depths; false: one of K codes for each
    codebook  the kind of the codebooks, running means by default, and its options
    """

    depth: int = 4
    shared: bool = True
    codebook: Annotated[VQConfig, Choice(CODEBOOKS, "emavq")] = field(default_factory=EMAVQConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.depth <= MAX_CODEBOOKS:
            raise ArcvqError(f"depth must be from 1 to {MAX_CODEBOOKS}, got {self.depth}")
        if self.codebook.output != "raw":
            raise ArcvqError("residuals need the lengths of codes: codebook.output must be raw")


class ResidualVQ(Nested):
    """`ResidualVQ(dim=64, codebook_size=512, depth=4)`. Options: see ResidualVQConfig.

    Tokens are (B, *spatial, depth), and `decode` adds up their codes. Each loss of the codebook's kind is its mean over the depths,
    on the residuals r = z − sg z_d of each: so the commitment term is β · mean_d mean (z − sg z_d)², with z_d the sum of the first
    d codes. A shared codebook is updated once per step, with the residuals of all depths.
    """

    Config = ResidualVQConfig
    config: ResidualVQConfig

    @property
    def codebooks(self) -> int:  # type: ignore[override]
        """One, or one for each depth."""
        return 1 if self.config.shared else self.config.depth

    @property
    def depth(self) -> int:  # type: ignore[override]
        """How many tokens a vector has."""
        return self.config.depth

    def quantize(
        self, latents: Tensor, valid: Tensor | None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """Latents (N, code_dim) → sums of codes with the estimator's gradient, tokens (N, depth), losses, stats."""
        residual = latents.to(compute_dtype(latents))
        chosen, losses, stats = [], [], []
        for depth in range(self.depth):
            layer = self.layer(depth)
            _, tokens, terms, values = layer.quantize(residual, valid)
            residual = residual - layer.lookup(tokens).detach()
            chosen.append(tokens)
            losses.append(terms)
            stats.append(values)
        tokens = torch.stack(chosen, dim=1)
        estimate = straight_through if self.config.codebook.estimator == "straight-through" else rotate
        quantized = estimate(self.sum_codes(tokens), latents)
        every = None if valid is None else valid[:, None].expand_as(tokens)
        return quantized, tokens, self.mean_terms(losses), self.mean_stats(stats, tokens, every)

    def sum_codes(self, tokens: Tensor) -> Tensor:
        """tokens (..., d) of the first d depths → the sums of their codes (..., code_dim), added in order."""
        total = self.layer(0).lookup(tokens[..., 0])
        for depth in range(1, tokens.shape[-1]):
            total = total + self.layer(depth).lookup(tokens[..., depth])
        return total

    def lookup(self, tokens: Tensor) -> Tensor:
        """tokens (..., heads · depth) in 0 … K−1 → sums of codes (..., heads, code_dim)."""
        return self.sum_codes(tokens.unflatten(-1, (self.config.heads, self.depth)))

    def decode_depths(self, tokens: Tensor) -> Tensor:
        """Tokens (B, *spatial, d) of the first d depths → the latents that they stand for, a coarser version of `decode`."""
        if self.config.heads > 1:
            raise ArcvqError("with several heads the depths cannot be decoded alone: use decode")
        given = tokens.shape[-1] if tokens.dim() > 1 else 0
        if not 1 <= given <= self.depth:
            raise ArcvqError(f"expected tokens (B, *spatial, 1 to {self.depth}), got shape {tuple(tokens.shape)}")
        tokens = self.check_range(tokens.to(torch.int64))
        return self._to_layout(self.sum_codes(tokens.clamp(min=0)), (tokens >= 0).all(dim=-1))

    @torch.no_grad()
    def draw(self, latents: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """Draw a code for each residual r from softmax(−‖r − e_k‖² / temperature), depth after depth; changes nothing.

        Latents in the layer's layout → tokens (B, *spatial, depth), and the probabilities they were drawn from, (B, *spatial, depth, K).
        At a temperature near 0 the tokens are those of `encode`. Needs distances (codebook.metric euclidean) and one head.
        """
        self.check_draw()
        rows = self._to_rows(latents)
        residual = self.to_code_space(rows).to(compute_dtype(latents))
        tokens = torch.empty(len(residual), self.depth, dtype=torch.int64, device=residual.device)
        found = residual.new_empty(len(residual), self.depth, len(self.layer(0).codebook))
        for depth in range(self.depth):
            layer = self.layer(depth)
            logits = distance_logits(residual, layer.codebook) / temperature  # (N, K)
            tokens[:, depth] = (logits + gumbel(logits)).argmax(1)
            found[:, depth] = logits.softmax(1)
            residual = residual - layer.lookup(tokens[:, depth])
        shape = (*rows.shape[:-1], self.depth)
        return tokens.view(shape), found.view(*shape, -1)

    def check_draw(self) -> None:
        """Raise unless codes can be drawn by their distances."""
        if self.config.codebook.metric != "euclidean" or self.config.heads > 1:
            raise ArcvqError("codes are drawn by distance: expected codebook.metric euclidean and one head")

    @torch.no_grad()
    def inputs_for_update(self, latents: Tensor, tokens: Tensor | None, valid: Tensor | None) -> UpdateInputs:
        """The residuals of all depths as rows (N · depth, code_dim), depths taking turns, with their tokens."""
        assert tokens is not None
        residual, rows = latents.to(compute_dtype(latents)), []
        for depth in range(self.depth):
            rows.append(residual)
            residual = residual - self.layer(depth).lookup(tokens[:, depth].clamp(min=0))
        every = None if valid is None else valid[:, None].expand_as(tokens).reshape(-1)
        return UpdateInputs(torch.stack(rows, dim=1).reshape(-1, self.code_dim), tokens.reshape(-1), every)

    @torch.no_grad()
    def init_from_latents_(self, latents: Tensor, seed: int = 0) -> None:
        """Set the codes to k-means centres of the latents (in the layer's layout), those of later depths to centres of what is left.

        A shared codebook gets the centres of the latents themselves.
        """
        residual = self.to_code_space(self._to_rows(latents))
        for layer in self.vqs():
            layer.kmeans_init_(residual, seed=seed)
            residual = residual - layer.lookup(layer.encode(residual))
