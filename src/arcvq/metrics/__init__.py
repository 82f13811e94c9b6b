"""Image distances, FID, codebook statistics, and the protocols they are measured under."""

from arcvq.metrics.codebook import (
    Neighbours,
    bits_per_image,
    coverage,
    geometry,
    near_duplicate_shares,
    nearest_neighbour_distance,
    neighbours,
    norms,
    perplexity,
    uniformity,
    usage,
)
from arcvq.metrics.evaluate import METRICS, Evaluation, evaluate, evaluate_under
from arcvq.metrics.fid import FeatureStatistics, InceptionNetwork, fid_features, fid_network, frechet_distance
from arcvq.metrics.image import l1, mse, psnr, ssim
from arcvq.metrics.labels import METRIC_LABELS, MetricLabel, metric_label
from arcvq.metrics.lpips import Lpips, lpips_network
from arcvq.metrics.lpips import lpips as lpips_distance
from arcvq.metrics.networks import keep_networks
from arcvq.metrics.protocols import EXACT, PAPER, PROTOCOLS, Protocol, protocol
from arcvq.metrics.weights import MissingWeights

__all__ = [
    "EXACT",
    "METRICS",
    "METRIC_LABELS",
    "PAPER",
    "PROTOCOLS",
    "Evaluation",
    "FeatureStatistics",
    "InceptionNetwork",
    "Lpips",
    "MetricLabel",
    "MissingWeights",
    "Neighbours",
    "Protocol",
    "bits_per_image",
    "coverage",
    "evaluate",
    "evaluate_under",
    "fid_features",
    "fid_network",
    "frechet_distance",
    "geometry",
    "keep_networks",
    "l1",
    "lpips_distance",
    "lpips_network",
    "metric_label",
    "mse",
    "near_duplicate_shares",
    "nearest_neighbour_distance",
    "neighbours",
    "norms",
    "perplexity",
    "protocol",
    "psnr",
    "ssim",
    "uniformity",
    "usage",
]
