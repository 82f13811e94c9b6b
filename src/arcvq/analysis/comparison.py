"""The metrics of several runs side by side, with the best marked where marking is fair."""

from collections.abc import Sequence
from dataclasses import dataclass

from arcvq.analysis.history import RunHistory
from arcvq.metrics import METRIC_LABELS, metric_label

ARROWS = {"up": "↑", "down": "↓", "none": ""}

# What the training loop logs at each evaluation, for runs that were never evaluated under a protocol.
LOGGED_METRICS = ("psnr", "l1", "usage", "perplexity", "rate")


@dataclass(frozen=True)
class Cell:
    """One number as printed, or the reason why there is none."""

    text: str | None
    best: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Row:
    metric: str
    label: str
    direction: str  # "↑", "↓" or ""
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Group:
    """Rows that were measured the same way; `details` are the numbers of which none is better."""

    title: str
    rows: tuple[Row, ...]
    details: tuple[Row, ...] = ()
    warning: str = ""


def compare(runs: Sequence[RunHistory]) -> list[Group]:
    """One group per protocol; the last logged evaluation as well where some run lacks the protocols' numbers."""
    protocols = list(dict.fromkeys(protocol for run in runs for protocol in run.results))
    groups = [_protocol_group(runs, protocol) for protocol in protocols]
    if not protocols or any(set(run.results) != set(protocols) for run in runs):
        groups.append(_logged_group(runs))
    return groups


def _protocol_group(runs: Sequence[RunHistory], protocol: str) -> Group:
    results = [run.results.get(protocol) for run in runs]
    measured = [result for result in results if result is not None]
    fair = len({result.protocol_hash for result in measured}) == 1
    ways = dict.fromkeys(f"{result.protocol_hash}, {result.images} images" for result in measured)
    found = {name for result in measured for name in (*result.metrics, *result.missing)}
    rows = []
    for metric in (*METRIC_LABELS, *sorted(found - METRIC_LABELS.keys())):
        values = [result.metrics.get(metric) if result else None for result in results]
        reasons = [
            result.missing.get(metric, "not measured") if result else f"not evaluated under “{protocol}”"
            for result in results
        ]
        if metric in found:
            rows.append(_row(metric, values, reasons, fair=fair))
    warning = "" if fair else "The runs were measured under different versions of this protocol: do not compare them."
    return Group(
        f"Protocol “{protocol}” ({'; '.join(ways)})",
        tuple(row for row in rows if row.direction),
        tuple(row for row in rows if not row.direction),
        warning,
    )


def _logged_group(runs: Sequence[RunHistory]) -> Group:
    rows = []
    for metric in LOGGED_METRICS:
        series = [run.evaluation_series(metric) for run in runs]
        values = [float(one.values[-1]) if len(one) else None for one in series]
        if any(value is not None for value in values):
            rows.append(_row(metric, values, ["not logged"] * len(runs), fair=True))
    return Group("Last evaluation during training", tuple(rows))


def _row(metric: str, values: Sequence[float | None], reasons: Sequence[str], *, fair: bool) -> Row:
    label = metric_label(metric)
    texts = [None if value is None else label.text(value) for value in values]
    # A winner needs a loser, and equal when printed is equal: nobody wins by a digit that is not shown.
    best = label.best([value for value in values if value is not None])
    winner = label.text(best) if best is not None and fair and len({*texts} - {None}) > 1 else None
    cells = tuple(
        Cell(text, best=text is not None and text == winner, reason="" if text else reason)
        for text, reason in zip(texts, reasons)
    )
    return Row(metric, label.label, ARROWS[label.better], cells)
