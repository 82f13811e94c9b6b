"""Image distances, FID, codebook statistics, metrics of generated images, and the protocols they are measured under."""

from arcvq.metrics.codebook import (
    Neighbours,
    bits_per_image,
    coverage,
    geometry,
    near_duplicate_shares,
    neighbours,
    norms,
    perplexity,
    uniformity,
    usage,
)
from arcvq.metrics.distributions import (
    MeanAndStd,
    PrecisionRecall,
    inception_score,
    kernel_distance,
    precision_recall,
)
from arcvq.metrics.evaluate import METRICS, Evaluation, evaluate, evaluate_under
from arcvq.metrics.fid import (
    FeatureStatistics,
    InceptionNetwork,
    fid_features,
    fid_network,
    frechet_distance,
    inception_head,
)
from arcvq.metrics.generation import GENERATION_METRICS, GenerationEvaluation, measure_generation
from arcvq.metrics.generation_features import GenerationNetworks, load_generation_networks
from arcvq.metrics.image import l1, mse, psnr, ssim
from arcvq.metrics.labels import METRIC_LABELS, MetricLabel, metric_label
from arcvq.metrics.lpips import Lpips, lpips_network
from arcvq.metrics.lpips import lpips as lpips_distance
from arcvq.metrics.networks import keep_networks
from arcvq.metrics.perturbation import Perturbation, evaluate_perturbed, nearest_codes, perturb_tokens
from arcvq.metrics.protocols import EXACT, PAPER, PROTOCOLS, Protocol, protocol
from arcvq.metrics.sampling import GenerationProtocol, balanced_labels
from arcvq.metrics.vgg import vgg_features, vgg_network
from arcvq.metrics.weights import MissingWeights

__all__ = [
    "EXACT",
    "GENERATION_METRICS",
    "METRICS",
    "METRIC_LABELS",
    "PAPER",
    "PROTOCOLS",
    "Evaluation",
    "FeatureStatistics",
    "GenerationEvaluation",
    "GenerationNetworks",
    "GenerationProtocol",
    "InceptionNetwork",
    "Lpips",
    "MeanAndStd",
    "MetricLabel",
    "MissingWeights",
    "Neighbours",
    "Perturbation",
    "PrecisionRecall",
    "Protocol",
    "balanced_labels",
    "bits_per_image",
    "coverage",
    "evaluate",
    "evaluate_perturbed",
    "evaluate_under",
    "fid_features",
    "fid_network",
    "frechet_distance",
    "geometry",
    "inception_head",
    "inception_score",
    "keep_networks",
    "kernel_distance",
    "l1",
    "load_generation_networks",
    "lpips_distance",
    "lpips_network",
    "measure_generation",
    "metric_label",
    "mse",
    "near_duplicate_shares",
    "nearest_codes",
    "neighbours",
    "norms",
    "perplexity",
    "perturb_tokens",
    "precision_recall",
    "protocol",
    "psnr",
    "ssim",
    "uniformity",
    "usage",
    "vgg_features",
    "vgg_network",
]
