"""The figures. Each is a function of run histories that returns a matplotlib Figure; none runs a model."""

from arcvq.analysis.figures.distances import pairwise_distances
from arcvq.analysis.figures.embedding import codebook_map
from arcvq.analysis.figures.frequency import code_frequency
from arcvq.analysis.figures.norms import norm_histograms
from arcvq.analysis.figures.reconstructions import reconstruction_grid
from arcvq.analysis.figures.style import render_png
from arcvq.analysis.figures.training import loss_curves, quality_over_time, usage_over_time

__all__ = [
    "code_frequency",
    "codebook_map",
    "loss_curves",
    "norm_histograms",
    "pairwise_distances",
    "quality_over_time",
    "reconstruction_grid",
    "render_png",
    "usage_over_time",
]
