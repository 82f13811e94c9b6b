"""Puts the metrics of several runs side by side and marks the best, if they were measured the same way."""

from collections.abc import Sequence
from dataclasses import dataclass

from arcvq.analysis.history import RunHistory
from arcvq.metrics import METRIC_LABELS, metric_label

ARROWS = {"up": "↑", "down": "↓", "none": ""}

# Metrics of the evaluations during training, for runs without an evaluation under a protocol.
LOGGED_METRICS = ("psnr", "l1", "usage", "perplexity", "rate", "bits_per_token", "bits_per_token_bound", "noise_mse")


@dataclass(frozen=True)
class Cell:
    """One number as printed, or the reason why there is none."""

    text: str | None
    best: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Row:
    """One metric, with a cell per run."""

    metric: str
    label: str
    direction: str  # "↑", "↓" or ""
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Group:
    """Metrics of one protocol. `details` are those without a better direction."""

    title: str
    rows: tuple[Row, ...]
    details: tuple[Row, ...] = ()
    warning: str = ""


def compare_metrics(runs: Sequence[RunHistory]) -> list[Group]:
    """One group per protocol, and one of the last logged evaluation if some run lacks a protocol."""
    protocols = list(dict.fromkeys(protocol for run in runs for protocol in run.results))
    groups = [_protocol_group(runs, protocol) for protocol in protocols]
    if not protocols or any(set(run.results) != set(protocols) for run in runs):
        groups.append(_logged_group(runs))
    return groups


def _protocol_group(runs: Sequence[RunHistory], protocol: str) -> Group:
    """The metrics measured under one protocol."""
    results = [run.results.get(protocol) for run in runs]
    measured = [result for result in results if result is not None]
    comparable = len({result.protocol_hash for result in measured}) == 1
    versions = dict.fromkeys(f"{result.protocol_hash}, {result.images} images" for result in measured)
    names = {name for result in measured for name in (*result.metrics, *result.missing)}
    rows = []
    for metric in (*METRIC_LABELS, *sorted(names - METRIC_LABELS.keys())):
        values = [result.metrics.get(metric) if result else None for result in results]
        reasons = [
            result.missing.get(metric, "not measured") if result else f"not evaluated under “{protocol}”"
            for result in results
        ]
        if metric in names:
            rows.append(_metric_row(metric, values, reasons, comparable=comparable))
    warning = "The runs were measured under different versions of this protocol: do not compare them."
    return Group(
        f"Protocol “{protocol}” ({'; '.join(versions)})",
        tuple(row for row in rows if row.direction),
        tuple(row for row in rows if not row.direction),
        warning="" if comparable else warning,
    )


def _logged_group(runs: Sequence[RunHistory]) -> Group:
    """The metrics of the last evaluation during training."""
    rows = []
    for metric in LOGGED_METRICS:
        series = [run.evaluation_series(metric) for run in runs]
        values = [float(each.values[-1]) if len(each) else None for each in series]
        if any(value is not None for value in values):
            rows.append(_metric_row(metric, values, ["not logged"] * len(runs), comparable=True))
    return Group("Last evaluation during training", tuple(rows))


def _metric_row(metric: str, values: Sequence[float | None], reasons: Sequence[str], *, comparable: bool) -> Row:
    """A row of printed values; the best is marked only if `comparable`."""
    label = metric_label(metric)
    texts = [None if value is None else label.text(value) for value in values]
    # Values are compared as printed; if all are equal, none is best.
    best = label.best([value for value in values if value is not None])
    best_text = label.text(best) if best is not None and comparable and len({*texts} - {None}) > 1 else None
    cells = tuple(
        Cell(text, best=text is not None and text == best_text, reason="" if text else reason)
        for text, reason in zip(texts, reasons)
    )
    return Row(metric, label.label, ARROWS[label.better], cells)
