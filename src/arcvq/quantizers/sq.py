"""Stochastic quantization (SQ): in training a latent draws its code, with a variance that is learnt; in evaluation it takes the likeliest.

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
from arcvq.quantizers.base import Quantizer, QuantizerConfig, check_sizes, through
from arcvq.quantizers.init import initial_codes
from arcvq.quantizers.quantized import UpdateInputs
from arcvq.quantizers.samp import Arc, Ball, Samp

# No draw is colder, and no logarithm of a variance farther from 0: beyond them float32 has no room for what they divide.
COLDEST, WIDEST = 1e-6, 30.0


@dataclass(frozen=True, kw_only=True)
class Temperature:
    """τ(t) = start · exp(−decay · t) of the relaxed draw. `time: fraction`: t runs from 0 to 1 over total_steps."""

    start: float = 1.0
    decay: float = 1e-5
    time: TimeUnit = "steps"

    def __post_init__(self) -> None:
        if not self.start > 0:
            raise ArcvqError(f"temperature: it must be positive, got start {self.start}")

    def curve(self) -> Schedule:
        return Schedule(kind="exponential", start=self.start, rate=-self.decay, time=self.time)


@dataclass(kw_only=True)
class SQConfig(QuantizerConfig):
    """Options of SQ beyond those every quantizer has.

    type            whose the variance σ² is: I everyone's, II an image's, III a token's, IV a single element's
    init            of the codes: normal, N(0, 1); or unit-sphere, on it
    init_variance  exp θ at the start, in σ² = v + exp θ: v is `floor` in type I and read off the latents in the others
    floor           1 in the released code; 0 makes σ² free, as in the paper
    temperature     of the draw in training
    evaluation      argmax, the likeliest code; or sample, one drawn as often as it is likely
    positions       type II: h·w, how many positions an image has
    elements        how many image elements stand behind one position: the losses are a share of the ELBO per element. 1 if not given
                    A system fills in the last two.
    ball, arc       the two parts of SAMP; off unless given. The ArcLoss is beside the ELBO, no share of it
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
                "type II has a variance for each image: say how many positions an image has, positions=h·w"
            )
        self.codebook = nn.Parameter(initial_codes(config.init, config.codebook_size, self.code_dim))
        self.log_variance = nn.Parameter(torch.tensor(math.log(config.init_variance)))  # θ
        self.variance_head = nn.Linear(self.code_dim, self.code_dim) if config.type != "I" else None
        self.temperature = config.temperature.curve()
        self.temperature.check(config.total_steps)
        self.samp = Samp(config.ball, config.arc, total_steps=config.total_steps)

    def quantize(
        self, latents: Tensor, valid: Tensor | None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor], dict[str, Tensor]]:
        with without_autocast(latents):
            dtype = compute_dtype(latents)
            z, codebook = latents.to(dtype), self.codebook.to(dtype)
            variance = self.variance(z, valid)  # (1, 1), (N, 1) or (N, code_dim)
            logits = code_logits(z, codebook, 1 / variance)  # (N, K)
            draws = self.config.evaluation == "sample" and not self.training
            tokens = (logits.detach() + gumbel(logits) if draws else logits.detach()).argmax(dim=1)
            temperature = self.temperature.at(self.step, self.config.total_steps).clamp(min=COLDEST)
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
        samp_losses, samp_stats = self.samp.terms(
            self.step, latents, self.codebook, valid, self.synchronizes, training=self.training
        )
        losses, stats = losses | samp_losses, self.token_stats(tokens, valid) | samp_stats
        spread = variance.detach().mean(dim=1).expand(z.shape[0])
        stats.update(temperature=temperature, variance=self.global_mean(spread, valid))
        return codes, tokens, losses, stats

    def _update(self, inputs: Sequence[UpdateInputs]) -> None:
        super()._update(inputs)
        with torch.no_grad():
            if self.samp.follows_perplexity:
                self.samp.update_perplexity_(self.code_counts(UpdateInputs.join(inputs)))
            self.samp.bound_(self.codebook, self.step)

    def variance(self, latents: Tensor, valid: Tensor | None) -> Tensor:
        """σ²: the logarithm of an image's or a token's own part is a mean of its elements'."""
        config, shared = self.config, self.log_variance.to(latents.dtype).clamp(-WIDEST, WIDEST).exp()
        if self.variance_head is None:
            return (config.floor + shared).reshape(1, 1)
        own = through(self.variance_head, latents).to(latents.dtype).clamp(-WIDEST, WIDEST)  # (N, code_dim)
        if config.type == "III":
            own = own.mean(dim=1, keepdim=True)
        elif config.type == "II":
            own = self._image_mean(own.mean(dim=1), valid).unsqueeze(1)
        return own.exp() + shared

    def _image_mean(self, values: Tensor, valid: Tensor | None) -> Tensor:
        """(N,) → (N,): each token gets the mean over its image's tokens."""
        rows = (self.config.positions or 1) * self.config.heads
        if values.shape[0] % rows:
            raise ArcvqError(
                f"type II expects images of {rows} tokens each, got {values.shape[0]} tokens: correct positions"
            )
        weight = torch.ones_like(values) if valid is None else valid.to(values.dtype)
        sums, counts = (x.reshape(-1, rows).sum(dim=1, keepdim=True) for x in (values * weight, weight))
        return (sums / counts.clamp(min=1)).expand(-1, rows).reshape(-1)
