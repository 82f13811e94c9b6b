"""Tables and progress on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from arcvq.metrics import METRIC_LABELS, metric_label
from arcvq.sweep import Plan
from arcvq.training import Measured


def print_measured(measured: Measured) -> None:
    """One row per metric and one column per protocol; what could not be measured says why."""
    console = Console()
    document = measured.document
    title = f"{document['name']} on {document['data']}, {measured.evaluations[0].images:,} images"
    console.print(title, highlight=False, soft_wrap=True)
    table = Table()
    table.add_column("metric")
    for evaluation in measured.evaluations:
        table.add_column(f"{evaluation.protocol} ({evaluation.protocol_hash})", justify="right")
    metrics = list(dict.fromkeys(m for e in measured.evaluations for m in [*e.metrics, *e.missing]))
    for metric in sorted(metrics, key=_position):
        table.add_row(metric_label(metric).label, *(_cell(metric, e.metrics) for e in measured.evaluations))
    console.print(table)
    reasons = {f"{m}: {why}" for e in measured.evaluations for m, why in e.missing.items()}
    for reason in sorted(reasons):
        console.print(f"missing {reason}", highlight=False, soft_wrap=True)


def print_comparison(rows: Mapping[str, Mapping[str, float]], title: str, missing: Sequence[str] = ()) -> None:
    """One row per run, the better number of each column in bold."""
    console = Console()
    ranked = [name for name, label in METRIC_LABELS.items() if label.better != "none"]
    columns = [name for name in ranked if any(name in metrics for metrics in rows.values())]
    console.print(title, highlight=False, soft_wrap=True)
    table = Table()
    table.add_column("system", no_wrap=True)
    for name in columns:
        table.add_column(metric_label(name).label, justify="right", no_wrap=True)
    for run, metrics in rows.items():
        table.add_row(run, *(_marked(name, metrics, rows) for name in columns))
    console.print(table)
    for reason in missing:
        console.print(f"missing {reason}", highlight=False, soft_wrap=True)


def print_plan(plan: Plan) -> None:
    """One line per run, then the time they need together. Plain lines: names are long, and a log may be where they go."""
    width = max((len(planned.run.key) for planned in plan.runs), default=0)
    for planned in plan.runs:
        seconds = planned.seconds()
        minutes = "unknown" if seconds is None else f"{seconds / 60:.1f} minutes by {planned.source}"
        print(f"{planned.run.key:{width}}  {planned.state:20}{minutes if planned.open else ''}".rstrip())
    for (preset, _), why in plan.times.failures.items():
        print(f"{preset}: no time known: {why}")
    done = sum(planned.state == "done" for planned in plan.runs)
    absent = sum(planned.state == "not in this version" for planned in plan.runs)
    known, unknown = f"about {plan.seconds / 60:.1f} minutes", f"{plan.unknown} of unknown length"
    lengths = [known] * (not plan.open or plan.unknown < len(plan.open)) + [unknown] * (plan.unknown > 0)
    print(
        f"{len(plan.open)} to run, {done} done, {absent} not in this version; {', and '.join(lengths)}, "
        f"{plan.parallel} at a time{' under MPS' * plan.mps}, on {plan.device}"
    )
    guessed = sum(planned.guessed for planned in plan.open)
    if guessed:
        print(f"of {guessed} of them, what measuring takes is a guess: its like was not measured on this device yet")
    diverged = sum(planned.state == "diverged" for planned in plan.runs)
    if diverged:
        print(f"{diverged} diverged: not trained again unless the result file is removed")
    for key, why in plan.foreign.items():
        print(f"{key}: not run: {why}")
    lacking = [planned for planned in plan.runs if planned.state == "incomplete" and not planned.open]
    if lacking:
        gone = sum(not planned.trained for planned in lacking)
        print(
            f"{len(lacking)} incomplete (a protocol, LPIPS or rFID is missing, or of an older revision): --complete measures them again"
            + f", and trains {gone} anew, whose weights were not kept" * (gone > 0)
        )


def _marked(name: str, metrics: Mapping[str, float], rows: Mapping[str, Mapping[str, float]]) -> str:
    cell, values = _cell(name, metrics), [other[name] for other in rows.values() if name in other]
    if len(values) > 1 and name in metrics and metrics[name] == metric_label(name).best(values):
        return f"[bold]{cell}[/bold]"
    return cell


def _cell(name: str, metrics: Mapping[str, float]) -> str:
    return metric_label(name).text(metrics[name]) if name in metrics else "missing"


def _position(name: str) -> int:
    return list(METRIC_LABELS).index(name) if name in METRIC_LABELS else len(METRIC_LABELS)


@contextmanager
def progress_bar(doing: str = "measuring") -> Iterator[Callable[[str, int, int], None]]:
    """`progress(label, done, total)` draws one bar per label, on a terminal only."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        tasks: dict[str, Any] = {}

        def update(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = progress.add_task(f"{doing} ({label})", total=total)
            progress.update(tasks[label], completed=done)

        yield update
