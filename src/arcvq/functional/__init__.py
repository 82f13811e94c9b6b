"""The mathematics, as pure functions of tensors. Names and equation numbers are the paper's."""

from arcvq.functional.arc import ArcStatistics, arc_finish, arc_loss, arc_merge, arc_statistics, margin_cosine
from arcvq.functional.assign import assign, perplexity, token_counts
from arcvq.functional.ball import ball_bound_
from arcvq.functional.chunks import BACKENDS, Backend
from arcvq.functional.entropy import entropy_loss, entropy_statistics
from arcvq.functional.gaussian import gaussian_kl
from arcvq.functional.lattice import fsq_bound, fsq_codes, lattice_digits, lattice_tokens
from arcvq.functional.schedules import NAMED_RUNS, Schedule, rate_like
from arcvq.functional.similarity import METRICS, Metric, unit
from arcvq.functional.stochastic import code_logits, gumbel_softmax, negative_entropy
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
    "arc_finish",
    "arc_loss",
    "arc_merge",
    "arc_statistics",
    "assign",
    "ball_bound_",
    "code_logits",
    "entropy_loss",
    "entropy_statistics",
    "fsq_bound",
    "fsq_codes",
    "gaussian_kl",
    "gumbel_softmax",
    "lattice_digits",
    "lattice_tokens",
    "margin_cosine",
    "negative_entropy",
    "perplexity",
    "rate_like",
    "sample_vmf",
    "straight_through",
    "token_counts",
    "unit",
    "vmf_kl",
    "vq_loss",
]
