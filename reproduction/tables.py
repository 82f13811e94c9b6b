"""The paper's tables: its numbers beside ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from arcvq.metrics import metric_label
from arcvq.storage import read_json
from reproduction.results import Result, Results, mean_metric

PAPER_FILE = Path(__file__).with_name("printed.json")
NO_VALUE, NOT_MEASURED = "–", "not measured"


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """The lines of a Markdown table; the first `left` columns are aligned left, the others right."""
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * left + "---:|" * (len(headings) - left)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def metric_heading(metric: str, protocol: str = "") -> str:
    """The heading of a metric's column, with an arrow for the better direction."""
    label = metric_label(metric)
    arrow = {"up": " ↑", "down": " ↓", "none": ""}[label.better]
    return f"{label.label}{f', {protocol}' if protocol else ''}{arrow}"


def seed_and_mean_cells(results: Sequence[Result], protocol: str, metrics: Sequence[str]) -> list[str]:
    """The cells of a row: the number of measured seeds, then the mean of each metric."""
    measured = [result for result in results if protocol in result.document["protocols"]]
    if not measured:
        word = "diverged" if results and all(result.diverged for result in results) else NOT_MEASURED
        return [word, *[NO_VALUE] * len(metrics)]
    diverged = sum(result.diverged for result in results)
    seeds = f"{len(measured)}" + (f" ({diverged} diverged)" if diverged else "")
    means = [mean_metric(measured, protocol, metric) for metric in metrics]
    return [seeds, *(found.text(m, len(measured)) if found else NO_VALUE for m, found in zip(metrics, means))]


def training_notes(results: Sequence[Result]) -> list[str]:
    """Lines below a table: precision and device of the trainings, and the footnote if a number needs it."""
    if not results:
        return []
    how = " and ".join(dict.fromkeys(f"in {result.precision} on {result.device}" for result in results))
    marked = any(result.is_old_revision(protocol) for result in results for protocol in result.document["protocols"])
    return ["", f"Trained {how}.", *["¹ Measured under the first revision of the protocol."] * marked]


def paper_beside_ours(table: dict[str, Any], results: Results, data: Sequence[str] | None = None) -> list[str]:
    """A table: for each system the paper's numbers, then ours under each protocol."""
    metrics, labels = table["metrics"], table["labels"]
    rows: list[list[str]] = []
    shown: list[Result] = []
    for dataset in data or table["data"]:
        for run in table["runs"]:
            about = [dataset, labels[run]]
            if numbers := paper_numbers(dataset, run, table.get("print")):
                texts = [metric_label(m).text(numbers[m]) if m in numbers else NO_VALUE for m in metrics]
                rows.append([*about, "print", NO_VALUE, *texts, NO_VALUE])
            ours = results.get(dataset, run)
            shown += ours
            for protocol in table.get("protocols", ("paper", "exact")) if ours else ():
                mark = "¹" if any(result.is_old_revision(protocol) for result in ours) else ""
                rows.append([*about, f"{protocol}{mark}", *seed_and_mean_cells(ours, protocol, [*metrics, "usage"])])
            if not ours:
                rows.append([*about, NOT_MEASURED, *[NO_VALUE] * (len(metrics) + 2)])
    return [
        *markdown_table(["data", "system", "", "seeds", *map(metric_heading, [*metrics, "usage"])], rows, left=3),
        *training_notes(shown),
    ]


def paper_numbers(data: str, run: str, part: str | None = None) -> dict[str, float]:
    """The paper's numbers of a run. With `part`, those of its appendix come first, which differ for some systems."""
    document = read_json(PAPER_FILE, "what the paper prints")
    parts = [document[part]] if part else []
    for each in (*parts, document):
        if run in each.get(data, {}):
            found: dict[str, float] = each[data][run]
            return found
    return {}


def not_measured_table() -> list[str]:
    """The tables of the paper that are not reproduced, and why."""
    rows = [[table["title"], table["why"]] for table in read_json(PAPER_FILE, "what the paper prints")["not measured"]]
    return markdown_table(["table", "why"], rows, left=2)
