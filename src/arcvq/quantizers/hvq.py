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
from arcvq.quantizers.base import Quantizer, QuantizerConfig, check_weights
from arcvq.quantizers.quantized import UpdateInputs


@dataclass(frozen=True, kw_only=True)
class Revival:
    """Every `every` steps the least used code, if it has less than `threshold` of the most used one's tokens, moves beside it.

    Beside: plus N(0, noise²). One code a time; the counts then begin anew.
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
    """A token draws its code from p = softmax(−‖z − e‖²). In training the draw is softened: a mixture of codes.

    kl_weight          on KL(p ‖ uniform), a mean over tokens
    commitment_weight  on Σ_k p_k ‖z − e_k‖², a mean over tokens; moves latents and codes
    temperature        of the softened draw at the start, falling in a line to temperature_end over total_steps (unless they are
                       known it stays)
    evaluation         argmax, the nearest code; or sample, a draw as in training
    revival            of dead codes
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
    evaluation it is. SAMP has no place here: the draw has no variance of its own, so that codes in a small ball are all alike to it.
    """

    Config = HVQConfig
    config: HVQConfig
    codebook: Tensor
    usage_counts: Tensor

    def __init__(self, dim: int, codebook_size: int = 512, **options: Any) -> None:
        super().__init__(dim, codebook_size, **options)
        config = self.config
        self.codebook = nn.Parameter(torch.randn(config.codebook_size, self.code_dim))
        self.set_length(config.total_steps)
        if config.revival:
            self.register_buffer("usage_counts", torch.zeros(config.codebook_size, dtype=torch.int64))

    def set_length(self, total_steps: int | None) -> None:
        """How many steps this quantizer is trained: its temperature falls over them."""
        config = self.config = replace(self.config, total_steps=total_steps)
        kind: Literal["linear", "constant"] = "constant" if total_steps is None else "linear"
        self._temperature = Schedule(kind=kind, start=config.temperature, end=config.temperature_end)

    def quantize(
        self, latents: Tensor, valid: Tensor | None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor], dict[str, Tensor]]:
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
            tokens = self._pick(logits)
            return self.lookup(tokens).to(latents.dtype), tokens, losses, self.token_stats(tokens, valid)
        noise = gumbel(logits)
        tokens = (logits.detach() + noise).argmax(dim=1)
        stats = self.token_stats(tokens, valid)
        temperature = self._temperature.at(self.step, config.total_steps)
        with without_autocast(latents):
            mixture = relaxed_one_hot(logits, temperature, noise)
            codes = matmul(mixture, self.codebook.to(mixture.dtype))  # (N, code_dim)
        return codes.to(latents.dtype), tokens, losses, {**stats, "temperature": temperature}

    def choose(self, latents: Tensor) -> Tensor:
        """Latents → codes as evaluation picks them, whatever the mode; in the layer's layout, in float32, without a gradient."""
        with torch.no_grad(), without_autocast(latents):
            rows = self._rows(latents)
            tokens = self._pick(distance_logits(self.to_code_space(rows), self.codebook))
            codes = self.lookup(tokens).reshape(*rows.shape[:-1], -1)
            return self._assemble(codes, None).to(latents.dtype)

    def _pick(self, logits: Tensor) -> Tensor:
        return (logits + gumbel(logits) if self.config.evaluation == "sample" else logits).argmax(dim=1)

    def _update(self, inputs: Sequence[UpdateInputs]) -> None:
        super()._update(inputs)
        if self.config.revival:
            self._revive_(self.code_counts(UpdateInputs.join(inputs)))

    @torch.no_grad()
    def _revive_(self, counts: Tensor) -> None:
        revival = self.config.revival
        assert revival is not None
        self.usage_counts.add_(counts)
        due = self.step % revival.every == 0
        least, most = (
            self.usage_counts.argmin(dim=0, keepdim=True),
            self.usage_counts.argmax(dim=0, keepdim=True),
        )  # (1,)
        dead = due & (self.usage_counts[least] < revival.threshold * self.usage_counts[most])
        noise = distributed.from_first_process(torch.randn(1, self.code_dim, device=self.codebook.device))
        beside = self.codebook[most] + revival.noise * noise.to(self.codebook.dtype)
        self.codebook.index_copy_(0, least, torch.where(dead, beside, self.codebook[least]))
        self.usage_counts.mul_(~due)
