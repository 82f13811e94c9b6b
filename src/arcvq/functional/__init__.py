"""The mathematics, as pure functions of tensors. Names and equation numbers are the paper's."""

from arcvq.functional.arc import ArcStatistics, arc_finish, arc_loss, arc_merge, arc_statistics, margin_cosine
from arcvq.functional.assign import assign, perplexity, token_counts
from arcvq.functional.ball import ball_bound_
from arcvq.functional.chunks import BACKENDS, Backend
from arcvq.functional.entropy import entropy_loss, entropy_statistics
from arcvq.functional.schedules import NAMED_RUNS, Schedule, rate_like
from arcvq.functional.similarity import METRICS, Metric, unit
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
    "entropy_loss",
    "entropy_statistics",
    "margin_cosine",
    "perplexity",
    "rate_like",
    "straight_through",
    "token_counts",
    "unit",
    "vq_loss",
]
