"""A weighted sum of distances between reconstruction and image: by pixels, by the features of a network, by a likelihood."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from arcvq import distributed
from arcvq.errors import ArcvqError
from arcvq.functional import logit_laplace_nll
from arcvq.functional.precision import compute_dtype
from arcvq.metrics.lpips import lpips_network
from arcvq.objectives.perceptual import PerceptualLoss

# LPIPS compares features after five stages. The first ones see detail, the last ones see what is in the image.
SHALLOW, DEEP = 3, 2


@dataclass(kw_only=True)
class PerceptualConfig:
    """l1              weight of the mean absolute error over all elements in [-1, 1]
    l2              weight of the mean squared error, which is not divided by the pixels' variance
    perceptual      weight of LPIPS, a mean over images
    network         of LPIPS: vgg or alex
    semantic        α of each stage of the training (the last one for all stages after it): in place of LPIPS, the sum over its
                    five stages, take α · (the last two) + (1 − α) · (the first three)
    laplace         weight of the logit-Laplace negative log-likelihood per element; the decoder must give location and log_scale
    laplace_margin  how far pixels are kept from 0 and 1 for it
    """

    l1: float = 1.0
    l2: float = 0.0
    perceptual: float = 1.0
    network: Literal["vgg", "alex"] = "vgg"
    semantic: tuple[float, ...] | None = None
    laplace: float = 0.0
    laplace_margin: float = 0.1

    def __post_init__(self) -> None:
        weights = {name: getattr(self, name) for name in ("l1", "l2", "perceptual", "laplace")}
        for name, weight in weights.items():
            if weight < 0:
                raise ArcvqError(f"{name} is a weight and must be at least 0, got {weight}")
        if not any(weights.values()):
            raise ArcvqError(f"nothing to learn from: one of {', '.join(weights)} must be above 0")
        if self.semantic is not None and not (self.semantic and all(0 <= alpha <= 1 for alpha in self.semantic)):
            raise ArcvqError(
                f"semantic must be numbers from 0 to 1, one for each stage of the training, got {self.semantic}"
            )
        if self.semantic is not None and not self.perceptual:
            raise ArcvqError("semantic divides LPIPS between its stages: set perceptual above 0")
        if not 0 < self.laplace_margin < 0.5:
            raise ArcvqError(f"laplace_margin must be above 0 and below 0.5, got {self.laplace_margin}")


class PerceptualObjective(nn.Module):
    """`PerceptualObjective(pixel_variance, config=config)(reconstruction, images)` → {"l1": ..., "l2": ..., "perceptual": ...,
    "laplace": ...}, weighted, over the global batch; without the terms whose weight is 0."""

    Config = PerceptualConfig

    def __init__(self, pixel_variance: Callable[[], float], *, config: PerceptualConfig) -> None:
        super().__init__()
        self.config = config
        self.lpips = PerceptualLoss(lpips_network(config.network)) if config.perceptual else None

    def forward(
        self, reconstruction: Tensor, images: Tensor, extra: Mapping[str, Tensor] = {}, stage: int = 0
    ) -> dict[str, Tensor]:
        config, terms = self.config, {}
        difference = reconstruction.to(compute_dtype(reconstruction)) - images.to(compute_dtype(images))
        if config.l1:
            terms["l1"] = config.l1 * _mean(difference.abs())
        if config.l2:
            terms["l2"] = config.l2 * _mean(difference.square())
        if self.lpips is not None:
            terms["perceptual"] = config.perceptual * _mean(self.lpips(reconstruction, images, self._weights(stage)))
        if config.laplace:
            if "location" not in extra or "log_scale" not in extra:
                raise ArcvqError(
                    "laplace needs a decoder that gives location and log_scale, and this one does not: set objective.laplace "
                    "to 0, or choose an autoencoder with a logit-Laplace head"
                )
            nll = logit_laplace_nll(images, extra["location"], extra["log_scale"], config.laplace_margin)
            terms["laplace"] = config.laplace * _mean(nll)
        share = distributed.batch_weight(images)
        return {name: term * share for name, term in terms.items()}

    def _weights(self, stage: int) -> tuple[float, ...] | None:
        """The weights of the stages of LPIPS in this stage of the training; None: all 1."""
        if self.config.semantic is None:
            return None
        alpha = self.config.semantic[min(stage, len(self.config.semantic) - 1)]
        return (1 - alpha,) * SHALLOW + (alpha,) * DEEP


def _mean(values: Tensor) -> Tensor:
    """The mean; 0 without values."""
    return values.sum() / max(1, values.numel())
