"""Run folders turned into figures, a diagnosis and a page. Nothing here trains or runs a model."""

from arcvq.analysis.diagnosis import Finding, diagnose
from arcvq.analysis.figures import (
    code_frequency,
    codebook_map,
    loss_curves,
    norm_histograms,
    pairwise_distances,
    quality_over_time,
    reconstruction_grid,
    render_png,
    usage_over_time,
)
from arcvq.analysis.history import EvaluationResult, RunHistory, Series
from arcvq.analysis.report import write_report
from arcvq.analysis.snapshot import Snapshot

__all__ = [
    "EvaluationResult",
    "Finding",
    "RunHistory",
    "Series",
    "Snapshot",
    "code_frequency",
    "codebook_map",
    "diagnose",
    "loss_curves",
    "norm_histograms",
    "pairwise_distances",
    "quality_over_time",
    "reconstruction_grid",
    "render_png",
    "usage_over_time",
    "write_report",
]
