"""What each figure shows, in plain words and with the numbers of the runs at hand."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from torch import Tensor

from arcvq.analysis.diagnosis import near_duplicates
from arcvq.analysis.figures.distances import DISTANCE_LIMIT
from arcvq.analysis.figures.embedding import MAP_LIMIT
from arcvq.analysis.figures.reconstructions import MOST_IMAGES, mean_psnr
from arcvq.analysis.history import RunHistory
from arcvq.analysis.snapshot import Snapshot


def verdict(runs: Sequence[RunHistory]) -> str:
    """The page's first sentence: how many codes live."""
    return _each(runs, lambda run: f"uses {_fraction(run.last_snapshot)}") + "."


def usage_caption(runs: Sequence[RunHistory]) -> str:
    def end(run: RunHistory) -> str:
        snapshot = run.last_snapshot
        perplexity = f"perplexity {snapshot.perplexity:.0f}" if snapshot.token_count else "no tokens counted"
        return f"ends at {snapshot.usage:.0%}, {perplexity}"

    return (
        f"How much of the codebook the evaluation images reach as training goes on: {_each(runs, end)}. Perplexity counts "
        "codes by how evenly they share the work; where it lags far behind the codes in use, a few of them do most of it."
    )


def map_caption(runs: Sequence[RunHistory]) -> str:
    unused = _each(runs, lambda run: f"has {run.last_snapshot.size - run.last_snapshot.used_count:,} unused codes")
    sample = _sampled(runs, MAP_LIMIT)
    return (
        f"Each mark is one code, placed so that neighbours stay neighbours; circles are in use (larger: more tokens), "
        f"grey crosses never are. {unused}.{sample}"
    )


def norm_caption(runs: Sequence[RunHistory]) -> str:
    def compared(run: RunHistory) -> str:
        snapshot = run.last_snapshot
        used = snapshot.norms[snapshot.used & snapshot.finite]
        unused = snapshot.norms[~snapshot.used & snapshot.finite]
        if len(used) == 0 or len(unused) == 0:
            return (
                f"has a median norm of {np.median(snapshot.norms[snapshot.finite]):.3g}"
                if len(used)
                else "has none used"
            )
        return f"ends with median norms of {np.median(used):.3g} (used) and {np.median(unused):.3g} (unused)"

    bounded = [run.name for run in runs if run.ball_radius_at(run.last_step) is not None]
    bound = f" The dashed line is the ball that no code of {' or '.join(bounded)} may leave." if bounded else ""
    return (
        f"How long the codes are, early and late. {_each(runs, compared)}. "
        f"Where the two groups drift apart, the unused codes are out of the latents' reach and stay dead.{bound}"
    )


def distance_caption(runs: Sequence[RunHistory]) -> str:
    duplicates = _each(runs, lambda run: f"has {near_duplicates(run.last_snapshot):,} codes with a near-twin")
    return (
        "The distance between every two codes, busiest codes first, on one colour scale; the dashed lines mark where the "
        f"used codes end. A dark block is a clump of codes that all say the same: {duplicates}.{_sampled(runs, DISTANCE_LIMIT)}"
    )


def frequency_caption(runs: Sequence[RunHistory]) -> str:
    def half(run: RunHistory) -> str:
        return f"needs {busiest_for_half(run.last_snapshot):,} of {run.last_snapshot.size:,} codes"

    return f"Tokens per code, sorted; a curve drops where its codes fall silent. To cover half of all tokens, {_each(runs, half)}."


def quality_caption(runs: Sequence[RunHistory]) -> str:
    def end(run: RunHistory) -> str:
        psnr = run.evaluation_series("psnr")
        return f"ends at {psnr.values[-1]:.2f} dB" if len(psnr) else "logged no PSNR"

    return f"Reconstruction quality on the evaluation images during training: {_each(runs, end)}."


def loss_caption(runs: Sequence[RunHistory]) -> str:
    def end(run: RunHistory) -> str:
        series = run.train_series("reconstruction")
        last = series.values[-max(len(series) // 20, 1) :]
        return f"ends at {last.mean():.3g}" if len(series) else "logged none"

    # The term is only one yardstick where all runs define it alike.
    alike = all(run.config.get("objective") == runs[0].config.get("objective") for run in runs)
    comparison = "the reconstruction term does" if alike else "nor do the reconstruction terms, whose objectives differ"
    return (
        "Each term of the loss on a log scale, smoothed, with the logged values faint behind. Totals of different systems "
        f"do not compare; {comparison}: {_each(runs, end)}."
    )


def reconstruction_caption(originals: Tensor, reconstructions: Mapping[str, Tensor]) -> str:
    shown = min(len(originals), MOST_IMAGES)
    parts = [
        f"{name} reaches {mean_psnr(originals[:shown], images[:shown]):.2f} dB"
        for name, images in reconstructions.items()
    ]
    what = f"these {shown} images" if shown > 1 else "this image"
    return f"Evaluation images, and what is left of them after a pass through the tokens. On {what} {'; '.join(parts)} (PSNR)."


def busiest_for_half(snapshot: Snapshot) -> int:
    """The fewest codes that together receive half of all tokens."""
    if snapshot.token_count == 0:
        return 0
    running = np.cumsum(np.sort(snapshot.counts)[::-1])
    return int(np.searchsorted(running, snapshot.token_count / 2) + 1)


def _each(runs: Sequence[RunHistory], clause: Callable[[RunHistory], str]) -> str:
    return "; ".join(f"{run.name} {clause(run)}" for run in runs)


def _fraction(snapshot: Snapshot) -> str:
    return f"{snapshot.used_count:,} of {snapshot.size:,} codes"


def _sampled(runs: Sequence[RunHistory], limit: int) -> str:
    if not any(run.last_snapshot.size > limit for run in runs):
        return ""
    return f" Of larger codebooks, {limit:,} codes are shown, evenly spaced by rank of use."
