"""The mathematics, as pure functions of tensors. Names and equation numbers are the paper's."""

from arcvq.functional.anchors import anchor_rate, contrastive_loss, nearest_latents
from arcvq.functional.arc import (
    ArcStatistics,
    arc_finish,
    arc_loss,
    arc_merge,
    arc_statistics,
    assign_and_arc_loss,
    margin_cosine,
)
from arcvq.functional.assign import assign, perplexity, token_counts, token_sums
from arcvq.functional.ball import ball_bound_
from arcvq.functional.chunks import BACKENDS, Backend
from arcvq.functional.ema import ema_update_, smoothed_counts
from arcvq.functional.entropy import entropy_loss, entropy_statistics, sign_entropy_statistics
from arcvq.functional.gaussian import gaussian_kl
from arcvq.functional.lattice import fsq_bound, fsq_codes, lattice_digits, lattice_tokens
from arcvq.functional.lookup import lookup
from arcvq.functional.relaxed import distance_logits, divergence_from_uniform, gumbel, relaxed_one_hot
from arcvq.functional.rotation import rotate
from arcvq.functional.schedules import NAMED_RUNS, Schedule, rate_to_match
from arcvq.functional.similarity import METRICS, Metric, unit
from arcvq.functional.stochastic import code_logits, negative_entropy
from arcvq.functional.vmf import sample_vmf, vmf_kl
from arcvq.functional.vq import straight_through, vq_loss

__all__ = [
    "BACKENDS",
    "METRICS",
    "NAMED_RUNS",
    "ArcStatistics",
    "Backend",
    "Metric",
    "Schedule",
    "anchor_rate",
    "arc_finish",
    "arc_loss",
    "arc_merge",
    "arc_statistics",
    "assign",
    "assign_and_arc_loss",
    "ball_bound_",
    "code_logits",
    "contrastive_loss",
    "distance_logits",
    "divergence_from_uniform",
    "ema_update_",
    "entropy_loss",
    "entropy_statistics",
    "fsq_bound",
    "fsq_codes",
    "gaussian_kl",
    "gumbel",
    "lattice_digits",
    "lattice_tokens",
    "lookup",
    "margin_cosine",
    "nearest_latents",
    "negative_entropy",
    "perplexity",
    "rate_to_match",
    "relaxed_one_hot",
    "rotate",
    "sample_vmf",
    "sign_entropy_statistics",
    "smoothed_counts",
    "straight_through",
    "token_counts",
    "token_sums",
    "unit",
    "vmf_kl",
    "vq_loss",
]
