"""The mathematics, as pure functions of tensors. Names and equation numbers are the paper's."""

from arcvq.functional.adversarial import (
    AdversarialKind,
    adaptive_weight,
    discriminator_loss,
    generator_loss,
    lecam,
    r1_penalty,
    ramp,
)
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
from arcvq.functional.attention import attend
from arcvq.functional.ball import ball_bound_
from arcvq.functional.bias import add_bias, conv2d
from arcvq.functional.chunks import BACKENDS, Backend
from arcvq.functional.ema import ema_update_, smoothed_counts
from arcvq.functional.entropy import entropy_loss, entropy_statistics, sign_entropy_statistics
from arcvq.functional.feature_distance import unit_distance
from arcvq.functional.gaussian import gaussian_kl
from arcvq.functional.group_norm import ACTIVATIONS, Activation, group_norm
from arcvq.functional.laplace import logit_laplace_nll
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
    "ACTIVATIONS",
    "BACKENDS",
    "METRICS",
    "NAMED_RUNS",
    "Activation",
    "AdversarialKind",
    "ArcStatistics",
    "Backend",
    "Metric",
    "Schedule",
    "adaptive_weight",
    "add_bias",
    "anchor_rate",
    "arc_finish",
    "arc_loss",
    "arc_merge",
    "arc_statistics",
    "assign",
    "assign_and_arc_loss",
    "attend",
    "ball_bound_",
    "code_logits",
    "contrastive_loss",
    "conv2d",
    "discriminator_loss",
    "distance_logits",
    "divergence_from_uniform",
    "ema_update_",
    "entropy_loss",
    "entropy_statistics",
    "fsq_bound",
    "fsq_codes",
    "gaussian_kl",
    "generator_loss",
    "group_norm",
    "gumbel",
    "lattice_digits",
    "lattice_tokens",
    "lecam",
    "logit_laplace_nll",
    "lookup",
    "margin_cosine",
    "nearest_latents",
    "negative_entropy",
    "perplexity",
    "r1_penalty",
    "ramp",
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
    "unit_distance",
    "vmf_kl",
    "vq_loss",
]
