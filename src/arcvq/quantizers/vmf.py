"""The bottleneck of a hyperspherical VAE: a von Mises–Fisher posterior, a uniform prior on the unit sphere.

Davidson et al., Hyperspherical Variational Auto-Encoders, 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from arcvq.errors import ArcvqError
from arcvq.functional import sample_vmf, unit, vmf_kl
from arcvq.quantizers.continuous import Continuous, ContinuousConfig


@dataclass(kw_only=True)
class VonMisesFisherConfig(ContinuousConfig):
    """Options of VonMisesFisher beyond those of every continuous bottleneck; z lies on the unit sphere of R^latent_dim.

    kappa_floor  κ = softplus(·) + kappa_floor: it keeps the posterior from collapsing onto the prior
    gradient     of the sample in κ: explicit, through the accepted proposal, as published; implicit, the exact one
    """

    kappa_floor: float = 1.0
    gradient: Literal["explicit", "implicit"] = "explicit"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.latent_dim < 3:
            raise ArcvqError(f"latent_dim must be at least 3 for a sphere, got {self.latent_dim}")
        if not self.kappa_floor > 0:
            raise ArcvqError(f"kappa_floor must be positive, got {self.kappa_floor}")


class VonMisesFisher(Continuous):
    """`VonMisesFisher(dim=64, latent_dim=65)`: z on the unit sphere, sampled around μ in training, μ in evaluation.

    Options: see VonMisesFisherConfig.
    """

    Config = VonMisesFisherConfig
    config: VonMisesFisherConfig

    def posterior_parameter_count(self) -> int:
        return self.config.latent_dim + 1

    def posterior(self, parameters: Tensor, sample: bool) -> tuple[Tensor, Tensor]:
        direction, kappa = parameters.split([self.config.latent_dim, 1], dim=1)
        direction, kappa = unit(direction), self.config.kappa_floor + nn.functional.softplus(kappa.squeeze(1))
        z = sample_vmf(direction, kappa, self.config.gradient == "implicit") if sample else direction
        return z, vmf_kl(kappa, self.config.latent_dim).to(parameters.dtype)
