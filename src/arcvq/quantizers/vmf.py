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
    """Options of VonMisesFisher beyond those of every continuous bottleneck; latent_dim is m, of the space around the sphere.

    kappa_floor  κ = softplus(·) + this: it keeps the posterior from collapsing onto the prior
    gradient     of the draw in κ: explicit, through the accepted proposal, as published; implicit, the exact one
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
    """`VonMisesFisher(dim=64, latent_dim=65)`: z on the unit sphere, drawn around μ in training, μ in evaluation.

    Options: see VonMisesFisherConfig.
    """

    Config = VonMisesFisherConfig
    config: VonMisesFisherConfig

    def posterior_width(self) -> int:
        return self.config.latent_dim + 1

    def posterior(self, parameters: Tensor, draw: bool) -> tuple[Tensor, Tensor]:
        direction, kappa = parameters.split([self.config.latent_dim, 1], dim=1)
        direction, kappa = unit(direction), self.config.kappa_floor + nn.functional.softplus(kappa.squeeze(1))
        z = sample_vmf(direction, kappa, self.config.gradient == "implicit") if draw else direction
        return z, vmf_kl(kappa, self.config.latent_dim).to(parameters.dtype)
