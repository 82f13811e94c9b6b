"""The figures of the report, each with a caption that states the runs' numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from arcvq.analysis.diagnosis import is_short_plain_run
from arcvq.analysis.figures.discriminator import discriminator_health, has_discriminator
from arcvq.analysis.figures.distances import DISTANCE_LIMIT, pairwise_distances
from arcvq.analysis.figures.embedding import MAP_LIMIT, codebook_map
from arcvq.analysis.figures.frequency import code_frequency
from arcvq.analysis.figures.norms import norm_histograms
from arcvq.analysis.figures.reconstructions import MAX_IMAGES, PHONE_IMAGES, mean_psnr, reconstruction_grid
from arcvq.analysis.figures.training import loss_curves, quality_over_time, usage_over_time
from arcvq.analysis.history import RunHistory
from arcvq.analysis.snapshot import FloatArray, Snapshot
from arcvq.metrics import metric_label
from arcvq.metrics.codebook import NEAR_DUPLICATE_DISTANCE

Runs = Sequence[RunHistory]


@dataclass(frozen=True)
class Illustration:
    """A figure with its title, caption and alternative text."""

    anchor: str
    title: str
    figure: Figure
    caption: str
    alt: str  # what is drawn, for readers who cannot see it
    narrow: Figure | None = None  # for a phone; default: the figure's panels stacked


def make_illustrations(runs: Runs) -> list[Illustration]:
    """All figures except the reconstructions, in the order of the page."""
    with_codebook = [run for run in runs if run.has_codebook]
    codebook_figures = (
        usage_illustration,
        code_map_illustration,
        norms_illustration,
        distances_illustration,
        frequency_illustration,
    )
    drawn = [draw(with_codebook) for draw in codebook_figures] if with_codebook else []
    drawn += [quality_illustration(runs), losses_illustration(runs)]
    return [*drawn, discriminator_illustration(runs)] if any(map(has_discriminator, runs)) else drawn


def reconstructions_illustration(
    originals: Tensor, reconstructed: Mapping[str, Tensor], positions: Mapping[str, int]
) -> Illustration:
    """Test images and their reconstructions by each run; `positions` of the runs set their colours."""
    shown = min(len(originals), MAX_IMAGES)
    psnrs = "; ".join(
        f"{name} {mean_psnr(originals[:shown], images[:shown]):.2f} dB" for name, images in reconstructed.items()
    )
    fewer = f", of which a narrow screen shows {PHONE_IMAGES}" if shown > PHONE_IMAGES else ""
    return Illustration(
        "reconstructions",
        "Reconstructions",
        reconstruction_grid(originals, reconstructed, positions),
        f"Test images and their reconstructions by each run. Mean PSNR over {shown} images{fewer}: {psnrs}.",
        f"Grid of images: originals in the first row, then one row of reconstructions for each of {' and '.join(reconstructed)}.",
        narrow=reconstruction_grid(originals, reconstructed, positions, narrow=True),
    )


def usage_illustration(runs: Runs) -> Illustration:
    """Usage and perplexity over training."""

    def final_usage(run: RunHistory) -> str:
        snapshot = run.last_snapshot
        perplexity = f"perplexity {snapshot.perplexity:.0f}" if snapshot.token_count else "no tokens counted"
        return f"ends at {metric_label('usage').text(snapshot.usage)}, {perplexity}"

    caption = (
        f"How much of the codebook the evaluation images use: {_per_run(runs, final_usage)}. Perplexity is the effective "
        "number of codes; if it is far below the number of used codes, a few of them take most tokens."
    )
    short_runs = [run.name for run in runs if is_short_plain_run(run)]
    if short_runs:
        caption += (
            f" The usage of a plain codebook rises late: more steps may raise the curve of {' and '.join(short_runs)}."
        )
    return Illustration(
        "usage",
        "Codes in use during training",
        usage_over_time(runs),
        caption,
        f"Two line charts against the training step for {_run_names(runs)}: share of codes in use, and perplexity.",
    )


def code_map_illustration(runs: Runs) -> Illustration:
    """The codes in two dimensions."""
    unused = _per_run(runs, lambda run: f"has {run.last_snapshot.size - run.last_snapshot.used_count:,} unused codes")
    return Illustration(
        "map",
        "The codes in two dimensions",
        codebook_map(runs),
        "Each mark is one code, placed so that neighbours stay neighbours. Circles are used codes (larger: more tokens), "
        f"grey crosses are unused ones. {unused}.{_sampling_note(runs, MAP_LIMIT)}",
        f"Scatter plots of the codes in two dimensions, one panel each for {_run_names(runs)}; used and unused codes marked apart.",
    )


def norms_illustration(runs: Runs) -> Illustration:
    """Histograms of the norms of used and unused codes, early and late in the training."""

    def final_norms(run: RunHistory) -> str:
        snapshot = run.last_snapshot
        used, unused = (snapshot.norms[mask & snapshot.finite] for mask in (snapshot.used, ~snapshot.used))
        return f"ends with median norms of {_median_text(used)} (used) and {_median_text(unused)} (unused)"

    bounded = [run.name for run in runs if run.ball_radius_at(run.last_step) is not None]
    bound = f" The dashed line bounds the codes of {' and '.join(bounded)}." if bounded else ""
    return Illustration(
        "norms",
        "Norms of the codes, early and late",
        norm_histograms(runs),
        f"{_per_run(runs, final_norms)}. If the two groups drift apart, no latent comes near the unused codes, "
        f"and they stay unused.{bound}",
        f"Histograms of the norms of used and unused codes, early and late in training, one row each for {_run_names(runs)}.",
    )


def distances_illustration(runs: Runs) -> Illustration:
    """Heat maps of the distances between codes."""
    duplicates = _per_run(runs, lambda run: f"has {run.last_snapshot.near_duplicate_count:,} near duplicates")
    return Illustration(
        "distances",
        "Distances between codes",
        pairwise_distances(runs),
        "The distance between every two codes, most used codes first, on one colour scale. The dashed lines mark where the "
        "used codes end. A dark block is a group of codes that are close to one another. "
        f"A near duplicate is within {NEAR_DUPLICATE_DISTANCE:.0%} of the mean norm of another code: "
        f"{duplicates}.{_sampling_note(runs, DISTANCE_LIMIT)}",
        f"Heat maps of the distance between every two codes, sorted by use, one panel each for {_run_names(runs)}.",
    )


def frequency_illustration(runs: Runs) -> Illustration:
    """Tokens per code, most used codes first."""

    def needed_codes(run: RunHistory) -> str:
        return f"needs {codes_for_half_of_tokens(run.last_snapshot):,} of {run.last_snapshot.size:,} codes"

    return Illustration(
        "frequency",
        "Tokens per code",
        code_frequency(runs),
        "Tokens per code, most used first; a curve ends at the last used code. "
        f"For half of all tokens, {_per_run(runs, needed_codes)}.",
        f"Line chart of tokens per code, sorted by falling count, on a log scale, one line each for {_run_names(runs)}.",
    )


def quality_illustration(runs: Runs) -> Illustration:
    """PSNR and error over training."""

    def final_psnr(run: RunHistory) -> str:
        psnr = run.evaluation_series("psnr")
        return f"ends at {psnr.values[-1]:.2f} dB" if len(psnr) else "logged no PSNR"

    return Illustration(
        "quality",
        "Quality during training",
        quality_over_time(runs),
        f"Reconstruction quality on the evaluation images: {_per_run(runs, final_psnr)}.",
        f"Two line charts against the training step for {_run_names(runs)}: PSNR, and mean absolute error.",
    )


def losses_illustration(runs: Runs) -> Illustration:
    """Every term of the loss over training."""

    def final_reconstruction(run: RunHistory) -> str:
        series = run.train_series("reconstruction")
        last = series.values[-max(len(series) // 20, 1) :]
        return f"ends at {last.mean():.3g}" if len(series) else "logged none"

    # The term is comparable only between runs of the same objective.
    alike = all(run.config.get("objective") == runs[0].config.get("objective") for run in runs)
    comparison = (
        "the reconstruction term is" if alike else "nor are the reconstruction terms, because the objectives differ"
    )
    # Objectives of several terms log none of that name.
    logged = any(len(run.train_series("reconstruction")) for run in runs)
    final = f"; {comparison}: {_per_run(runs, final_reconstruction)}" if logged else ""
    return Illustration(
        "losses",
        "Losses",
        loss_curves(runs),
        "Each term of the loss, smoothed, with the logged values faint behind; on a log scale if it is never negative. Totals of "
        f"different systems are not comparable{final}.",
        f"Line charts of each loss term against the training step for {_run_names(runs)}.",
    )


def discriminator_illustration(runs: Runs) -> Illustration:
    """The numbers of the discriminator over training, for the runs that have one."""

    def final_numbers(run: RunHistory) -> str:
        names = {
            "discriminator": "a loss of",
            "real_logits": "logits of images at",
            "fake_logits": "of reconstructions at",
        }
        found = {label: run.train_series(name).values for name, label in names.items()}
        ends = [f"{label} {each[-max(len(each) // 20, 1) :].mean():.3g}" for label, each in found.items() if len(each)]
        return f"ends with {', '.join(ends)}"

    judged = [run for run in runs if has_discriminator(run)]
    return Illustration(
        "discriminator",
        "The discriminator",
        discriminator_health(runs),
        f"{_per_run(judged, final_numbers)}. Healthy: the logits of images lie above those of reconstructions, but not far, and the "
        "loss stays well above 0. If the logits drift apart, the discriminator wins and its gradient says little.",
        "Line charts against the training step of the discriminator's logits and loss, of the weight of the adversarial term and of "
        f"the gradients that it compares, for {_run_names(judged)}.",
    )


def codes_for_half_of_tokens(snapshot: Snapshot) -> int:
    """The smallest number of codes that together receive half of all tokens."""
    if snapshot.token_count == 0:
        return 0
    running = np.cumsum(np.sort(snapshot.counts)[::-1])
    return int(np.searchsorted(running, snapshot.token_count / 2) + 1)


def _per_run(runs: Runs, describe: Callable[[RunHistory], str]) -> str:
    """`NAME DESCRIPTION` for each run, joined by semicolons."""
    return "; ".join(f"{run.name} {describe(run)}" for run in runs)


def _run_names(runs: Runs) -> str:
    return " and ".join(run.name for run in runs)


def _median_text(values: FloatArray) -> str:
    """The median as text, or a dash if there are no values."""
    return f"{np.median(values):.3g}" if len(values) else "–"


def _sampling_note(runs: Runs, limit: int) -> str:
    """A sentence for the caption if a codebook has more codes than the figure shows, else nothing."""
    if not any(run.last_snapshot.size > limit for run in runs):
        return ""
    return f" Of larger codebooks, {limit:,} codes are shown, evenly spaced by rank of use."
