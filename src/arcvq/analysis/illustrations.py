"""The report's figures in the order of the page, each with a caption that carries the runs' numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from arcvq.analysis.diagnosis import is_young_and_plain
from arcvq.analysis.figures.distances import DISTANCE_LIMIT, pairwise_distances
from arcvq.analysis.figures.embedding import MAP_LIMIT, codebook_map
from arcvq.analysis.figures.frequency import code_frequency
from arcvq.analysis.figures.norms import norm_histograms
from arcvq.analysis.figures.reconstructions import MOST_IMAGES, mean_psnr, reconstruction_grid
from arcvq.analysis.figures.training import loss_curves, quality_over_time, usage_over_time
from arcvq.analysis.history import RunHistory
from arcvq.analysis.snapshot import FloatArray, Snapshot
from arcvq.metrics import metric_label
from arcvq.metrics.codebook import NEAR_DUPLICATE_DISTANCE

Runs = Sequence[RunHistory]


@dataclass(frozen=True)
class Illustration:
    anchor: str
    title: str
    figure: Figure
    caption: str
    alt: str  # what is drawn, for readers who cannot see it; the caption says what it shows
    narrow: Figure | None = None  # for a phone; else the figure's panels, one below the other


def illustrate(runs: Runs) -> list[Illustration]:
    """All figures but the reconstructions; those of codebooks for the runs that have one."""
    coded = [run for run in runs if run.has_codebook]
    of_codebooks = (usage, code_map, norms, distances, frequency) if coded else ()
    return [*(draw(coded) for draw in of_codebooks), quality(runs), losses(runs)]


def reconstructions(originals: Tensor, rebuilt: Mapping[str, Tensor], places: Mapping[str, int]) -> Illustration:
    """`rebuilt` and each run's place among the colours are by the run's name."""
    shown = min(len(originals), MOST_IMAGES)
    reached = "; ".join(
        f"{name} {mean_psnr(originals[:shown], images[:shown]):.2f} dB" for name, images in rebuilt.items()
    )
    return Illustration(
        "reconstructions",
        "Reconstructions",
        reconstruction_grid(originals, rebuilt, places),
        f"Test images, and what each tokenizer makes of them. Mean PSNR of the {shown} images: {reached}.",
        f"Grid of images: originals in the first row, then one row of reconstructions for each of {' and '.join(rebuilt)}.",
        narrow=reconstruction_grid(originals, rebuilt, places, narrow=True),
    )


def usage(runs: Runs) -> Illustration:
    def end(run: RunHistory) -> str:
        snapshot = run.last_snapshot
        perplexity = f"perplexity {snapshot.perplexity:.0f}" if snapshot.token_count else "no tokens counted"
        return f"ends at {metric_label('usage').text(snapshot.usage)}, {perplexity}"

    caption = (
        f"How much of the codebook the evaluation images use: {_each(runs, end)}. Perplexity counts codes by how evenly "
        "they are used; where it is far below the codes in use, a few of them take most tokens."
    )
    young = [run.name for run in runs if is_young_and_plain(run)]
    if young:
        caption += f" A plain codebook wakes up late: many more steps may raise the curve of {' and '.join(young)}."
    return Illustration(
        "usage",
        "Codes in use during training",
        usage_over_time(runs),
        caption,
        f"Two line charts against the training step for {_names(runs)}: share of codes in use, and perplexity.",
    )


def code_map(runs: Runs) -> Illustration:
    unused = _each(runs, lambda run: f"has {run.last_snapshot.size - run.last_snapshot.used_count:,} unused codes")
    return Illustration(
        "map",
        "The codes in two dimensions",
        codebook_map(runs),
        "Each mark is one code, placed so that neighbours stay neighbours; circles are in use (larger: more tokens), "
        f"grey crosses are not. {unused}.{_sampled(runs, MAP_LIMIT)}",
        f"Scatter plots of the codes in two dimensions, one panel each for {_names(runs)}; used and unused codes marked apart.",
    )


def norms(runs: Runs) -> Illustration:
    def compared(run: RunHistory) -> str:
        snapshot = run.last_snapshot
        used, unused = (snapshot.norms[mask & snapshot.finite] for mask in (snapshot.used, ~snapshot.used))
        return f"ends with median norms of {_median(used)} (used) and {_median(unused)} (unused)"

    bounded = [run.name for run in runs if run.ball_radius_at(run.last_step) is not None]
    bound = f" The dashed line bounds the codes of {' and '.join(bounded)}." if bounded else ""
    return Illustration(
        "norms",
        "Norms of the codes, early and late",
        norm_histograms(runs),
        f"{_each(runs, compared)}. Where the two groups drift apart, no latent comes near the unused codes, "
        f"and they stay unused.{bound}",
        f"Histograms of the norms of used and unused codes, early and late in training, one row each for {_names(runs)}.",
    )


def distances(runs: Runs) -> Illustration:
    duplicates = _each(runs, lambda run: f"has {run.last_snapshot.near_duplicates:,} near duplicates")
    return Illustration(
        "distances",
        "Distances between codes",
        pairwise_distances(runs),
        "The distance between every two codes, most used codes first, on one colour scale; the dashed lines mark where the "
        "used codes end. A dark block is a group of codes that lie closer together than the others. "
        f"A near duplicate is within {NEAR_DUPLICATE_DISTANCE:.0%} of the mean norm of another code: "
        f"{duplicates}.{_sampled(runs, DISTANCE_LIMIT)}",
        f"Heat maps of the distance between every two codes, sorted by use, one panel each for {_names(runs)}.",
    )


def frequency(runs: Runs) -> Illustration:
    def half(run: RunHistory) -> str:
        return f"needs {busiest_for_half(run.last_snapshot):,} of {run.last_snapshot.size:,} codes"

    return Illustration(
        "frequency",
        "Tokens per code",
        code_frequency(runs),
        "Tokens per code, most used first; a curve ends where the unused codes begin. "
        f"For half of all tokens, {_each(runs, half)}.",
        f"Line chart of tokens per code, sorted by falling count, on a log scale, one line each for {_names(runs)}.",
    )


def quality(runs: Runs) -> Illustration:
    def end(run: RunHistory) -> str:
        psnr = run.evaluation_series("psnr")
        return f"ends at {psnr.values[-1]:.2f} dB" if len(psnr) else "logged no PSNR"

    return Illustration(
        "quality",
        "Quality during training",
        quality_over_time(runs),
        f"Reconstruction quality on the evaluation images: {_each(runs, end)}.",
        f"Two line charts against the training step for {_names(runs)}: PSNR, and mean absolute error.",
    )


def losses(runs: Runs) -> Illustration:
    def end(run: RunHistory) -> str:
        series = run.train_series("reconstruction")
        last = series.values[-max(len(series) // 20, 1) :]
        return f"ends at {last.mean():.3g}" if len(series) else "logged none"

    # The term is only one yardstick where all runs define it alike.
    alike = all(run.config.get("objective") == runs[0].config.get("objective") for run in runs)
    comparison = "the reconstruction term does" if alike else "nor do the reconstruction terms, whose objectives differ"
    return Illustration(
        "losses",
        "Losses",
        loss_curves(runs),
        "Each term of the loss on a log scale, smoothed, with the logged values faint behind. Totals of different systems "
        f"do not compare; {comparison}: {_each(runs, end)}.",
        f"Line charts of each loss term against the training step on log scales for {_names(runs)}.",
    )


def busiest_for_half(snapshot: Snapshot) -> int:
    """The fewest codes that together receive half of all tokens."""
    if snapshot.token_count == 0:
        return 0
    running = np.cumsum(np.sort(snapshot.counts)[::-1])
    return int(np.searchsorted(running, snapshot.token_count / 2) + 1)


def _each(runs: Runs, clause: Callable[[RunHistory], str]) -> str:
    return "; ".join(f"{run.name} {clause(run)}" for run in runs)


def _names(runs: Runs) -> str:
    return " and ".join(run.name for run in runs)


def _median(values: FloatArray) -> str:
    return f"{np.median(values):.3g}" if len(values) else "–"


def _sampled(runs: Runs, limit: int) -> str:
    if not any(run.last_snapshot.size > limit for run in runs):
        return ""
    return f" Of larger codebooks, {limit:,} codes are shown, evenly spaced by rank of use."
