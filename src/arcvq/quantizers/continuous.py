"""Continuous bottlenecks: latents are samples of a posterior, and its KL divergence from the prior is a loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from arcvq.errors import ArcvqError
from arcvq.functional.precision import compute_dtype, without_autocast
from arcvq.quantizers.base import Quantizer, apply_projection
from arcvq.quantizers.options import QuantizerConfig, check_sizes, check_weights


@dataclass(kw_only=True)
class ContinuousConfig(QuantizerConfig):
    """Options of every continuous bottleneck.

    latent_dim  width of the sampled vector z
    weight      β, on the divergence
    sample      sample in evaluation, too, instead of using the posterior's mean
    positions   how many positions share one z: h·w for one z per image, which a system fills in; by default 1
    elements    image elements per position, by which the loss is divided, for the ELBO per element; by default 1; a system fills it in
    """

    codebook_size: int = 0
    latent_dim: int = 64
    weight: float = 1.0
    sample: bool = False
    positions: int | None = None
    elements: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("codebook_size", 0), ("heads", 1), ("code_dim", None)):
            if getattr(self, name) != value:
                raise ArcvqError(
                    f"{name}: a continuous bottleneck has no codes; leave it out (latent_dim is its width)"
                )
        check_sizes(latent_dim=self.latent_dim, positions=self.positions, elements=self.elements)
        check_weights(weight=self.weight)


class Continuous(Quantizer):
    """A quantizer without codes: `codebook` and `tokens` are None, and `decode` raises."""

    Config = ContinuousConfig
    config: ContinuousConfig

    def __init__(self, dim: int, codebook_size: int = 0, **options: Any) -> None:
        super().__init__(dim, codebook_size, **options)
        self.codebook = None
        self.positions = self.config.positions or 1
        self.to_posterior = nn.Linear(self.positions * dim, self.posterior_parameter_count())
        self.from_latent = nn.Linear(self.config.latent_dim, self.positions * dim)

    # ---- what a subclass defines ----------------------------------------------------------------------------------------

    def posterior_parameter_count(self) -> int:
        """The number of parameters of one posterior."""
        raise NotImplementedError

    def posterior(self, parameters: Tensor, sample: bool) -> tuple[Tensor, Tensor]:
        """parameters (M, posterior_parameter_count) → z (M, latent_dim), a sample or the mean, and the divergence from the prior (M,)."""
        raise NotImplementedError

    # ---------------------------------------------------------------------------------------------------------------------

    def quantize(
        self, latents: Tensor, valid: Tensor | None
    ) -> tuple[Tensor, Tensor | None, dict[str, Tensor], dict[str, Tensor]]:
        """latents (N, dim) → decoded samples (N, dim), None for tokens, losses, stats. `positions` rows share one sample."""
        config = self.config
        if valid is not None and self.positions > 1:
            raise ArcvqError("a vector for each image takes no mask: leave positions out to have one for each position")
        if latents.shape[0] % self.positions:
            raise ArcvqError(
                f"expected {self.positions} positions an image, got {latents.shape[0]} in all: "
                "a vector for each image fits images of one size only"
            )
        parameters = apply_projection(self.to_posterior, latents.reshape(-1, self.positions * self.dim))
        with without_autocast(latents):
            z, divergence = self.posterior(parameters.to(compute_dtype(parameters)), self.training or config.sample)
            elements = self.positions * (config.elements or 1)
            loss = config.weight / elements * self.token_mean(divergence, valid)
        stats = {"vector_rate": self.global_mean(divergence, valid)}  # nats
        return apply_projection(self.from_latent, z).reshape(-1, self.dim), None, {"divergence": loss}, stats
