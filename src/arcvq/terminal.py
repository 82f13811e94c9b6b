"""Tables on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from arcvq.metrics import METRIC_LABELS, metric_label
from arcvq.systems import Measured, MeasuredGenerator


def print_measured(measured: Measured) -> None:
    """Print a row per metric and a column per protocol, and why metrics are missing."""
    console = Console()
    document = measured.document
    title = f"{document['name']} on {document['data']}, {measured.evaluations[0].images:,} images"
    console.print(title, highlight=False, soft_wrap=True)
    table = Table()
    table.add_column("metric")
    for evaluation in measured.evaluations:
        table.add_column(f"{evaluation.protocol} ({evaluation.protocol_hash})", justify="right")
    metrics = list(dict.fromkeys(m for e in measured.evaluations for m in [*e.metrics, *e.missing]))
    for metric in sorted(metrics, key=_metric_order):
        table.add_row(metric_label(metric).label, *(_metric_text(metric, e.metrics) for e in measured.evaluations))
    console.print(table)
    _print_missing(console, {(m, why) for e in measured.evaluations for m, why in e.missing.items()})


def print_generation(measured: MeasuredGenerator) -> None:
    """Print a row per metric of generated images, the protocol, and why metrics are missing."""
    console, evaluation = Console(), measured.evaluation
    title = f"{measured.document['name']} beside {evaluation.protocol.data}, {evaluation.protocol.images:,} images"
    console.print(title, highlight=False, soft_wrap=True)
    table = Table()
    table.add_column("metric")
    table.add_column("value", justify="right")
    for name in [*evaluation.metrics, *evaluation.missing]:
        table.add_row(evaluation.label(name), _metric_text(name, evaluation.metrics))
    console.print(table)
    console.print(evaluation.protocol.line, highlight=False, soft_wrap=True)
    _print_missing(console, evaluation.missing.items())


def print_nearest(nearest: Mapping[str, Any], picture: Path) -> None:
    """Print how near generated and test images are to training images, and what follows."""
    console, generated, test = Console(), nearest["generated"], nearest["test"]
    lines = [
        f"{picture}: the images beside their nearest of {nearest['training_images']:,} training images",
        f"median distance to the nearest training image: {generated['median']:.4g} of generated images, {test['median']:.4g} of "
        f"{test['images']:,} reconstructed test images ({nearest['distance']})",
        f"nearer than a test image: {generated['nearer_than_a_test_image']:.0%}; nearer than the nearest 5% of test images: "
        f"{generated['nearer_than_5_percent_of_test']:.0%} (50% and 5% if generated images were distributed as test images are)",
        *([f"pixels, not features, are compared: {nearest['reason']}"] if nearest["reason"] else []),
    ]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def print_comparison(rows: Mapping[str, Mapping[str, float]], title: str, missing: Sequence[str] = ()) -> None:
    """Print a row per run and a column per metric, the best of each column in bold."""
    console = Console()
    ranked = [name for name, label in METRIC_LABELS.items() if label.better != "none"]
    columns = [name for name in ranked if any(name in metrics for metrics in rows.values())]
    console.print(title, highlight=False, soft_wrap=True)
    table = Table()
    table.add_column("system", no_wrap=True)
    for name in columns:
        table.add_column(metric_label(name).label, justify="right", no_wrap=True)
    for run, metrics in rows.items():
        table.add_row(run, *(_bold_if_best(name, metrics, rows) for name in columns))
    console.print(table)
    for reason in missing:
        console.print(f"missing {reason}", highlight=False, soft_wrap=True)


def _print_missing(console: Console, missing: Iterable[tuple[str, str]]) -> None:
    """Print each reason once, after the metrics that are missing for it."""
    metrics: dict[str, list[str]] = {}
    for metric, reason in sorted(missing):
        metrics.setdefault(reason, []).append(metric)
    for reason, names in metrics.items():
        console.print(f"missing {', '.join(names)}: {reason}", highlight=False, soft_wrap=True)


def _bold_if_best(name: str, metrics: Mapping[str, float], rows: Mapping[str, Mapping[str, float]]) -> str:
    """The metric as text, in bold if it is the best of all rows."""
    cell, values = _metric_text(name, metrics), [other[name] for other in rows.values() if name in other]
    if len(values) > 1 and name in metrics and metrics[name] == metric_label(name).best(values):
        return f"[bold]{cell}[/bold]"
    return cell


def _metric_text(name: str, metrics: Mapping[str, float]) -> str:
    """The metric as text, or `missing`."""
    return metric_label(name).text(metrics[name]) if name in metrics else "missing"


def _metric_order(name: str) -> int:
    """A sort key: the metric's place in METRIC_LABELS, unknown ones last."""
    return list(METRIC_LABELS).index(name) if name in METRIC_LABELS else len(METRIC_LABELS)
