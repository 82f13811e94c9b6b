"""The report's figures in the order in which they tell the story, each with its words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from torch import Tensor

from arcvq.analysis import captions, figures
from arcvq.analysis.history import RunHistory


@dataclass(frozen=True)
class Illustration:
    anchor: str
    title: str
    figure: Figure
    caption: str
    alt: str  # for who cannot see the figure: what is drawn; the caption, read next, says what it shows


def illustrate(
    runs: Sequence[RunHistory], originals: Tensor, reconstructions: Mapping[str, Tensor]
) -> list[Illustration]:
    names = " and ".join(run.name for run in runs)
    ordered = {run.name: reconstructions[run.name] for run in runs}  # the runs' order, so that colours agree
    return [
        Illustration(
            "reconstructions",
            "What comes back",
            figures.reconstruction_grid(originals, ordered),
            captions.reconstruction_caption(originals, ordered),
            f"Grid of images: originals in the first row, then one row of reconstructions for each of {names}.",
        ),
        Illustration(
            "usage",
            "Which codebook lives",
            figures.usage_over_time(runs),
            captions.usage_caption(runs),
            f"Two line charts against the training step for {names}: share of codes in use, and perplexity.",
        ),
        Illustration(
            "map",
            "The codes, seen from above",
            figures.codebook_map(runs),
            captions.map_caption(runs),
            f"Scatter plots of the codes in two dimensions, one panel each for {names}; used and unused codes marked apart.",
        ),
        Illustration(
            "norms",
            "How long the codes are, early and late",
            figures.norm_histograms(runs),
            captions.norm_caption(runs),
            f"Histograms of the norms of used and unused codes, early and late in training, one row each for {names}.",
        ),
        Illustration(
            "distances",
            "How far apart the codes are",
            figures.pairwise_distances(runs),
            captions.distance_caption(runs),
            f"Heat maps of the distance between every two codes, sorted by use, one panel each for {names}.",
        ),
        Illustration(
            "frequency",
            "Who does the work",
            figures.code_frequency(runs),
            captions.frequency_caption(runs),
            f"Line chart of tokens per code, sorted by falling count, on a log scale, one line each for {names}.",
        ),
        Illustration(
            "quality",
            "Quality during training",
            figures.quality_over_time(runs),
            captions.quality_caption(runs),
            f"Two line charts against the training step for {names}: PSNR, and mean absolute error.",
        ),
        Illustration(
            "losses",
            "The losses",
            figures.loss_curves(runs),
            captions.loss_caption(runs),
            f"Line charts of each loss term against the training step on log scales for {names}.",
        ),
    ]
