"""Fills a frozen codebook with features of the training images."""

from __future__ import annotations

import torch
from torch import nn

from arcvq.data import Images
from arcvq.errors import ArcvqError
from arcvq.nets.features import feature_encoder, image_features
from arcvq.quantizers import ProjectedVQ

# How many images are encoded for each code; each gives up to 16 features.
IMAGES_PER_CODE = 1


def init_codebook_from_features(
    quantizer: ProjectedVQ,
    images: Images,
    encoder: str | nn.Module,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> None:
    """Make the quantizer's frozen features the k-means centres of the encoder's features of images drawn with `seed`.

    `encoder` is a name in FEATURES, or a module with `feature_dim`; it runs on `device`, where the images are moved.
    """
    network = feature_encoder(encoder, device) if isinstance(encoder, str) else encoder.to(device)
    width, expected = network.feature_dim, quantizer.config.feature_dim
    if width != expected:
        raise ArcvqError(f"the encoder's features have width {width}, but the quantizer's feature_dim is {expected}")
    by_class = quantizer.config.features_by_class
    if by_class and images.labels is None:
        raise ArcvqError(f"{images.name} has no classes: leave out features_by_class")
    number = min(len(images), IMAGES_PER_CODE * quantizer.config.codebook_size)
    features, owners = image_features(network, images.to(device), number=number, seed=seed)
    labels = images.labels[owners].to(quantizer.basis.device) if by_class and images.labels is not None else None
    quantizer.init_from_features_(features.to(quantizer.basis.device), seed=seed, labels=labels)
