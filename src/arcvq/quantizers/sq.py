"""Stochastic quantization (SQ): training draws each token with a learned variance; evaluation uses the likeliest code.

Takida et al., SQ-VAE: Variational Bayes on Discrete Representation with Self-annealed Stochastic Quantization, 2022.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from arcvq.errors import ArcvqError
from arcvq.functional import (
    Schedule,
    code_logits,
    gumbel,
    negative_entropy,
    relaxed_one_hot,
    straight_through,
)
from arcvq.functional.precision import compute_dtype, matmul, without_autocast
from arcvq.functional.schedules import TimeUnit
from arcvq.quantizers.base import Quantizer, apply_projection
from arcvq.quantizers.init import initial_codes
from arcvq.quantizers.options import QuantizerConfig, check_sizes
from arcvq.quantizers.quantized import UpdateInputs
from arcvq.quantizers.samp import Arc, Ball, Samp

# The smallest temperature, and the largest absolute logarithm of a variance: beyond them float32 overflows.
MIN_TEMPERATURE, MAX_LOG_VARIANCE = 1e-6, 30.0


@dataclass(frozen=True, kw_only=True)
class Temperature:
    """The temperature of the relaxed draw, start · exp(−decay · t). `time: fraction`: t runs from 0 to 1 over total_steps."""

    start: float = 1.0
    decay: float = 1e-5
    time: TimeUnit = "steps"

    def __post_init__(self) -> None:
        if not self.start > 0:
            raise ArcvqError(f"temperature: it must be positive, got start {self.start}")

    def build_schedule(self) -> Schedule:
        """The schedule of the temperature."""
        return Schedule(kind="exponential", start=self.start, rate=-self.decay, time=self.time)


@dataclass(kw_only=True)
class SQConfig(QuantizerConfig):
    """Options of SQ beyond those every quantizer has.

    type            what has its own variance σ²: I nothing, all share one; II an image; III a token; IV an element
    init            of the codes: normal, N(0, 1); or unit-sphere
    init_variance   initial exp θ in σ² = v + exp θ; v is `floor` in type I and predicted from the latents in the others
    floor           1 as in the released code; 0 as in the paper
    temperature     of the draw in training
    evaluation      argmax, the likeliest code; or sample, a draw
    positions       type II: h·w, the positions of an image; a system fills it in
    elements        image elements per position, by which the losses are divided, for the ELBO per element; by default 1; a system fills
                    it in
    ball, arc       the two parts of SAMP; off unless given. The ArcLoss is added to the ELBO and not divided by `elements`
    """

    type: Literal["I", "II", "III", "IV"] = "I"
    init: Literal["normal", "unit-sphere"] = "normal"
    init_variance: float = 20.0
    floor: float = 1.0
    temperature: Temperature = field(default_factory=Temperature)
    evaluation: Literal["argmax", "sample"] = "argmax"
    positions: int | None = None
    elements: int | None = None
    ball: Ball | None = None
    arc: Arc | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.init_variance > 0 or self.floor < 0:
            raise ArcvqError(
                f"init_variance must be positive and floor not negative, got {self.init_variance} and {self.floor}"
            )
        check_sizes(positions=self.positions, elements=self.elements)


class SQ(Quantizer):
    """`SQ(dim=64, codebook_size=512)`: the quantizer of SQ-VAE with Gaussian noise. Options: see SQConfig.

    In training `quantized` is a mixture of codes, not what `tokens` (the likeliest codes) decode to.
    """

    Config = SQConfig
    config: SQConfig
    codebook: Tensor

    def __init__(self, dim: int, codebook_size: int = 512, **options: Any) -> None:
        super().__init__(dim, codebook_size, **options)
        config = self.config
        if config.type == "II" and config.positions is None:
            raise ArcvqError(
                "type II has a variance for each image: give the number of positions of an image, positions=h·w"
            )
        self.codebook = nn.Parameter(initial_codes(config.init, config.codebook_size, self.code_dim))
        self.log_variance = nn.Parameter(torch.tensor(math.log(config.init_variance)))  # θ
        self.variance_head = nn.Linear(self.code_dim, self.code_dim) if config.type != "I" else None
        self.temperature = config.temperature.build_schedule()
        self.temperature.check(config.total_steps)
        self.samp = Samp(config.ball, config.arc, total_steps=config.total_steps)

    def quantize(
        self, latents: Tensor, valid: Tensor | None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """Latents (N, code_dim) → mixtures of codes in training, codes in evaluation; tokens, losses, stats."""
        with without_autocast(latents):
            dtype = compute_dtype(latents)
            z, codebook = latents.to(dtype), self.codebook.to(dtype)
            variance = self.variance(z, valid)  # (1, 1), (N, 1) or (N, code_dim)
            logits = code_logits(z, codebook, 1 / variance)  # (N, K)
            draws = self.config.evaluation == "sample" and not self.training
            tokens = (logits.detach() + gumbel(logits) if draws else logits.detach()).argmax(dim=1)
            temperature = self.temperature.at(self.step, self.config.total_steps).clamp(min=MIN_TEMPERATURE)
            if self.training:
                codes = matmul(relaxed_one_hot(logits, temperature.to(dtype), gumbel(logits)), codebook)
            else:
                codes = straight_through(self.lookup(tokens), z)
            # The ELBO's two terms, a sum over each position's tokens; neither has a stop-gradient.
            distance = (z - codes).square().div(2 * variance).sum(dim=1)
            per_element = self.config.heads / (self.config.elements or 1)
            losses = {
                "entropy": self.token_mean(negative_entropy(logits), valid) * per_element,
                "distance": self.token_mean(distance, valid) * per_element,
            }
        samp_losses, samp_stats = self.samp.losses_and_stats(
            self.step, latents, self.codebook, valid, self.synchronizes, training=self.training
        )
        losses, stats = losses | samp_losses, self.token_stats(tokens, valid) | samp_stats
        spread = variance.detach().mean(dim=1).expand(z.shape[0])
        stats.update(temperature=temperature, variance=self.global_mean(spread, valid))
        return codes, tokens, losses, stats

    def _update(self, inputs: Sequence[UpdateInputs]) -> None:
        """After each step: update an adaptive weight's perplexity, and bound the codes."""
        super()._update(inputs)
        with torch.no_grad():
            if self.samp.follows_perplexity:
                self.samp.update_perplexity_(self.step_counts(UpdateInputs.join(inputs)))
            self.samp.bound_(self.codebook, self.step)

    def variance(self, latents: Tensor, valid: Tensor | None) -> Tensor:
        """σ² for latents (N, code_dim): (1, 1), (N, 1) or (N, code_dim). Means over an image or a token are of logarithms."""
        config, shared = (
            self.config,
            self.log_variance.to(latents.dtype).clamp(-MAX_LOG_VARIANCE, MAX_LOG_VARIANCE).exp(),
        )
        if self.variance_head is None:
            return (config.floor + shared).reshape(1, 1)
        log_own = (
            apply_projection(self.variance_head, latents).to(latents.dtype).clamp(-MAX_LOG_VARIANCE, MAX_LOG_VARIANCE)
        )  # (N, code_dim)
        if config.type == "III":
            log_own = log_own.mean(dim=1, keepdim=True)
        elif config.type == "II":
            log_own = self._image_mean(log_own.mean(dim=1), valid).unsqueeze(1)
        return log_own.exp() + shared

    def _image_mean(self, values: Tensor, valid: Tensor | None) -> Tensor:
        """The mean over each image's tokens, repeated for every token: (N,) → (N,)."""
        rows = (self.config.positions or 1) * self.config.heads
        if values.shape[0] % rows:
            raise ArcvqError(
                f"type II expects images of {rows} tokens each, got {values.shape[0]} tokens: correct positions"
            )
        weight = torch.ones_like(values) if valid is None else valid.to(values.dtype)
        sums, counts = (x.reshape(-1, rows).sum(dim=1, keepdim=True) for x in (values * weight, weight))
        return (sums / counts.clamp(min=1)).expand(-1, rows).reshape(-1)
