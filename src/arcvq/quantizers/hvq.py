"""The stochastic quantizer of hierarchical autoencoders (Williams et al., Hierarchical Quantized Autoencoders, NeurIPS 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from arcvq import distributed
from arcvq.errors import ArcvqError
from arcvq.functional import Schedule, distance_logits, divergence_from_uniform, gumbel, relaxed_one_hot
from arcvq.functional.precision import matmul, without_autocast
from arcvq.quantizers.base import Quantizer
from arcvq.quantizers.options import QuantizerConfig, check_weights
from arcvq.quantizers.quantized import UpdateInputs


@dataclass(frozen=True, kw_only=True)
class Revival:
    """Every `every` steps the least used code moves to the most used one plus N(0, noise²), if it has less than `threshold` of its
    tokens. Then the counts are reset.
    """

    every: int = 20
    threshold: float = 0.03
    noise: float = 0.01

    def __post_init__(self) -> None:
        if self.every < 1 or self.threshold < 0 or self.noise < 0:
            raise ArcvqError(
                f"revival: expected every >= 1, threshold >= 0 and noise >= 0, got {self.every}, {self.threshold} and {self.noise}"
            )


@dataclass(kw_only=True)
class HVQConfig(QuantizerConfig):
    """Options of HVQ beyond those every quantizer has. Tokens are drawn from p = softmax(−‖z − e‖²), in training relaxed.

    kl_weight          on KL(p ‖ uniform), a mean over tokens
    commitment_weight  on Σ_k p_k ‖z − e_k‖², a mean over tokens; moves latents and codes
    temperature        initial temperature of the relaxed draw; it falls in a line to temperature_end over total_steps, or is
                       constant without total_steps
    evaluation         argmax, the nearest code; or sample, a draw as in training
    revival            of unused codes; None switches it off
    """

    kl_weight: float = 1e-3
    commitment_weight: float = 1e-3
    temperature: float = 0.667
    temperature_end: float = 0.001
    evaluation: Literal["argmax", "sample"] = "argmax"
    revival: Revival | None = field(default_factory=Revival)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_weights(kl_weight=self.kl_weight, commitment_weight=self.commitment_weight)
        if not (self.temperature > 0 and self.temperature_end > 0):
            raise ArcvqError(f"temperatures must be positive, got {self.temperature} and {self.temperature_end}")


class HVQ(Quantizer):
    """`HVQ(dim=64, codebook_size=512)`. Options: see HVQConfig.

    In training `quantized` is a mixture of codes and forward draws random numbers, so `decode(tokens)` is not `quantized`; in
    evaluation it is. SAMP is not an option: the draw has no variance parameter, so codes in a small ball would be equally likely.
    """

    Config = HVQConfig
    config: HVQConfig
    codebook: Tensor
    usage_counts: Tensor

    def __init__(self, dim: int, codebook_size: int = 512, **options: Any) -> None:
        super().__init__(dim, codebook_size, **options)
        config = self.config
        self.codebook = nn.Parameter(torch.randn(config.codebook_size, self.code_dim))
        self.set_total_steps(config.total_steps)
        if config.revival:
            self.register_buffer("usage_counts", torch.zeros(config.codebook_size, dtype=torch.int64))

    def set_total_steps(self, total_steps: int | None) -> None:
        """Set the number of training steps, over which the temperature falls."""
        config = self.config = replace(self.config, total_steps=total_steps)
        kind: Literal["linear", "constant"] = "constant" if total_steps is None else "linear"
        self._temperature = Schedule(kind=kind, start=config.temperature, end=config.temperature_end)

    def quantize(
        self, latents: Tensor, valid: Tensor | None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """Latents (N, code_dim) → mixtures of codes in training, codes in evaluation; tokens, losses, stats."""
        config = self.config
        logits = distance_logits(latents, self.codebook)  # (N, K)
        with without_autocast(latents):
            log_p = torch.log_softmax(logits, dim=1)
            commitment = -(log_p.exp() * logits).sum(dim=1)
            losses = {
                "kl": config.kl_weight * self.token_mean(divergence_from_uniform(log_p), valid),
                "commitment": config.commitment_weight * self.token_mean(commitment, valid),
            }
        if not self.training:
            tokens = self._select_tokens(logits)
            return self.lookup(tokens).to(latents.dtype), tokens, losses, self.token_stats(tokens, valid)
        noise = gumbel(logits)
        tokens = (logits.detach() + noise).argmax(dim=1)
        stats = self.token_stats(tokens, valid)
        temperature = self._temperature.at(self.step, config.total_steps)
        with without_autocast(latents):
            mixture = relaxed_one_hot(logits, temperature, noise)
            codes = matmul(mixture, self.codebook.to(mixture.dtype))  # (N, code_dim)
        return codes.to(latents.dtype), tokens, losses, {**stats, "temperature": temperature}

    def quantize_as_in_evaluation(self, latents: Tensor) -> Tensor:
        """Latents → codes as in evaluation, in any mode; in the layer's layout, computed in float32, without a gradient."""
        with torch.no_grad(), without_autocast(latents):
            rows = self._to_rows(latents)
            tokens = self._select_tokens(distance_logits(self.to_code_space(rows), self.codebook))
            codes = self.lookup(tokens).reshape(*rows.shape[:-1], -1)
            return self._to_layout(codes, None).to(latents.dtype)

    def _select_tokens(self, logits: Tensor) -> Tensor:
        """The token of each row in evaluation: the likeliest, or with evaluation="sample" a draw."""
        return (logits + gumbel(logits) if self.config.evaluation == "sample" else logits).argmax(dim=1)

    def _update(self, inputs: Sequence[UpdateInputs]) -> None:
        """After each step: count the tokens, and revive an unused code when it is due."""
        super()._update(inputs)
        if self.config.revival:
            self._revive_(self.step_counts(UpdateInputs.join(inputs)))

    @torch.no_grad()
    def _revive_(self, counts: Tensor) -> None:
        """Add a step's counts (K,); every `revival.every` steps move the least used code if it is unused, and reset the counts."""
        revival = self.config.revival
        assert revival is not None
        self.usage_counts.add_(counts)
        due = self.step % revival.every == 0
        least, most = (
            self.usage_counts.argmin(dim=0, keepdim=True),
            self.usage_counts.argmax(dim=0, keepdim=True),
        )  # (1,)
        unused = due & (self.usage_counts[least] < revival.threshold * self.usage_counts[most])
        noise = distributed.from_first_process(torch.randn(1, self.code_dim, device=self.codebook.device))
        revived = self.codebook[most] + revival.noise * noise.to(self.codebook.dtype)
        self.codebook.index_copy_(0, least, torch.where(unused, revived, self.codebook[least]))
        self.usage_counts.mul_(~due)
