"""How far the reconstruction is from the image."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from arcvq import distributed
from arcvq.errors import ArcvqError


@dataclass(kw_only=True)
class ReconstructionConfig:
    """reconstruction  mse or l1, a mean over all elements; or likelihood: ½ log of the mean squared error, which is a Gaussian's
                    negative log-likelihood per element once its variance has been fitted to the batch (up to a constant)
    normalise       what it is divided by: `variance` of the training pixels in [-1, 1]; `variance01`, the variance in [0, 1],
                    a quarter of it, as some released baselines do (their reconstruction weighs 4 times more); or `none`
    """

    reconstruction: Literal["mse", "l1", "likelihood"] = "mse"
    normalise: Literal["variance", "variance01", "none"] = "variance"


class Reconstruction:
    """`Reconstruction(pixel_variance, config=config)(reconstruction, images)` → {"reconstruction": a scalar}, over the global batch.

    `pixel_variance()` costs a pass over the training images, and is called only if it is needed.
    """

    Config = ReconstructionConfig

    def __init__(self, pixel_variance: Callable[[], float], *, config: ReconstructionConfig) -> None:
        variance = 1.0 if config.normalise == "none" else pixel_variance()
        if not variance > 0:
            raise ArcvqError(
                "the training images are all of one colour: their variance is 0; set objective.normalise to none"
            )
        self.config = config
        self.divisor = variance / 4 if config.normalise == "variance01" else variance

    def __call__(
        self, reconstruction: Tensor, images: Tensor, extra: Mapping[str, Tensor] = {}, stage: int = 0
    ) -> dict[str, Tensor]:
        return {"reconstruction": self.error(reconstruction, images)}

    def error(self, reconstruction: Tensor, images: Tensor) -> Tensor:
        """The one term."""
        difference = reconstruction.float() - images.float()
        if self.config.reconstruction == "likelihood":
            return self.likelihood(difference.square())
        error = difference.square() if self.config.reconstruction == "mse" else difference.abs()
        mean = error.sum() / max(1, error.numel())
        return mean / self.divisor * distributed.batch_weight(images)

    def likelihood(self, squares: Tensor) -> Tensor:
        """(D/2)·log(SSE/D), over D; the fitted variance is everyone's. Its gradient is that of the MSE over 2·MSE: the floor bounds it."""
        count = torch.full((), squares.numel(), dtype=torch.float32, device=squares.device)
        total, count = distributed.gather(squares.sum()).sum(0), distributed.sum_over_processes(count)
        mean = total / count.clamp(min=1) / self.divisor
        return 0.5 * mean.clamp(min=torch.finfo(mean.dtype).tiny).log()
