"""Run folders turned into figures, a diagnosis and a page. Nothing here trains or runs a model."""

from arcvq.analysis.diagnosis import diagnose
from arcvq.analysis.figures.discriminator import discriminator_health
from arcvq.analysis.figures.distances import pairwise_distances
from arcvq.analysis.figures.embedding import codebook_map
from arcvq.analysis.figures.frequency import code_frequency
from arcvq.analysis.figures.norms import norm_histograms
from arcvq.analysis.figures.reconstructions import reconstruction_grid
from arcvq.analysis.figures.style import render_png
from arcvq.analysis.figures.training import loss_curves, quality_over_time, usage_over_time
from arcvq.analysis.finding import Finding
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
    "discriminator_health",
    "loss_curves",
    "norm_histograms",
    "pairwise_distances",
    "quality_over_time",
    "reconstruction_grid",
    "render_png",
    "usage_over_time",
    "write_report",
]
