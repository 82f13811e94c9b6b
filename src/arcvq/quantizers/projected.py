"""VQGAN-LC's quantizer (Zhu et al., NeurIPS 2024): codes are frozen features of images behind a learned linear layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from arcvq import distributed
from arcvq.errors import ArcvqError
from arcvq.quantizers.init import Init, initial_codes
from arcvq.quantizers.kmeans import kmeans, kmeans_by_class
from arcvq.quantizers.options import check_sizes
from arcvq.quantizers.simvq import SimVQ, SimVQConfig


@dataclass(kw_only=True)
class ProjectedVQConfig(SimVQConfig):
    """SimVQ's options, and:

    feature_dim        width of a feature; the learned layer leads from there to code_dim
    features           the encoder whose features of the training images the codes are (in arcvq.nets.features, e.g. vgg16); without
                       one the features are random, as `init` says
    features_by_class  cluster the features of each class of images alone, for K / classes codes of each
    codebook_weight, commitment_weight   by default those of VQGAN-LC
    """

    feature_dim: int = 512
    features: str | None = None
    features_by_class: bool = False
    init: Init = "scaled-normal"
    codebook_weight: float = 0.33
    commitment_weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(feature_dim=self.feature_dim)


class ProjectedVQ(SimVQ):
    """`ProjectedVQ(dim=8, codebook_size=100_000, feature_dim=512)`. Options: see ProjectedVQConfig.

    Before training, `init_from_features_(features)` makes the centres of their clusters the frozen `basis` (K, feature_dim).
    Everything else is as in SimVQ; the layer starts with weights from N(0, 1/code_dim) and no bias.
    """

    Config = ProjectedVQConfig
    config: ProjectedVQConfig

    def make_codebook(self) -> None:
        """Create the frozen features and the layer that projects them."""
        config = self.config
        self.register_buffer("basis", initial_codes(config.init, config.codebook_size, config.feature_dim))
        self.projection = nn.Linear(config.feature_dim, self.code_dim)
        nn.init.normal_(self.projection.weight, std=self.code_dim**-0.5)
        nn.init.zeros_(self.projection.bias)

    @torch.no_grad()
    def init_from_features_(
        self, features: Tensor, seed: int = 0, *, labels: Tensor | None = None, iterations: int = 10
    ) -> None:
        """Set the frozen features to the k-means centres of these (N, feature_dim). Call it once before training.

        With labels (N,), each class has its own clusters, K / classes of them. With several processes the first one's features
        count.
        """
        if features.dim() != 2 or features.shape[1] != self.config.feature_dim:
            raise ArcvqError(f"expected features (N, {self.config.feature_dim}), got shape {tuple(features.shape)}")
        if not torch.isfinite(features).all():
            raise ArcvqError("the features hold values that are not finite")
        size = self.config.codebook_size
        if labels is None:
            centres = kmeans(features, size, iterations=iterations, seed=seed)
        else:
            centres = kmeans_by_class(features, labels, size, iterations=iterations, seed=seed)
        self.basis.copy_(distributed.from_first_process(centres.to(self.basis)))
