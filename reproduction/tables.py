"""The paper's tables: its numbers beside ours."""

from __future__ import annotations

import math
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
    measured = [result for result in results if protocol in result.sections]
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
    marked = any(result.is_old_revision(protocol) for result in results for protocol in result.sections)
    return ["", f"Trained {how}.{' ¹ Measured under the first revision of the protocol.' * marked}"]


def with_print(text: str, metric: str, printed: dict[str, Any]) -> str:
    """A cell of ours with the paper's number in brackets, where it prints one."""
    return f"{text} ({metric_label(metric).text(printed[metric])})" if metric in printed else text


def cells_beside_print(
    results: Sequence[Result], protocol: str, metrics: Sequence[str], printed: dict[str, Any]
) -> list[str]:
    """`seed_and_mean_cells` with the paper's numbers in brackets."""
    seeds, *cells = seed_and_mean_cells(results, protocol, metrics)
    return [seeds, *(with_print(cell, metric, printed) for cell, metric in zip(cells, metrics))]


def paper_beside_ours(table: dict[str, Any], results: Results, data: Sequence[str] | None = None) -> list[str]:
    """A table: for each system ours under each protocol; under `paper` with the paper's numbers in brackets."""
    metrics, labels = [*table["metrics"], "usage"], table["labels"]
    protocols = table.get("protocols", ("paper", "exact"))
    rows: list[list[str]] = []
    shown: list[Result] = []
    for dataset in data or table["data"]:
        for run in table["runs"]:
            printed = paper_numbers(dataset, run, table.get("print"))
            ours = results.get(dataset, run)
            shown += ours
            for protocol in protocols if ours else protocols[:1]:
                mark = "¹" if any(result.is_old_revision(protocol) for result in ours) else ""
                about = [dataset, labels[run], *[f"{protocol}{mark}"] * (len(protocols) > 1)]
                about[1] += mark if len(protocols) == 1 else ""
                beside = printed if protocol == "paper" else {}
                rows.append([*about, *cells_beside_print(ours, protocol, metrics, beside)])
    first = ["data", "system", *[""] * (len(protocols) > 1)]
    headings = [*first, "seeds", *map(metric_heading, metrics)]
    return [*markdown_table(headings, rows, left=len(first)), *training_notes(shown)]


def paper_numbers(data: str, run: str, part: str | None = None) -> dict[str, float]:
    """The paper's numbers of a run. With `part`, those of its appendix come first, which differ for some systems."""
    document = read_json(PAPER_FILE, "what the paper prints")
    parts = [document[part]] if part else []
    for each in (*parts, document):
        if run in each.get(data, {}):
            found: dict[str, float] = each[data][run]
            return found
    return {}


def printed_rows(key: str) -> list[dict[str, Any]]:
    """The rows of a table of large images or of generation as the paper prints it, with the names of our runs."""
    rows: list[dict[str, Any]] = read_json(PAPER_FILE, "what the paper prints")[key]
    return rows


def print_notes(key: str) -> list[str]:
    """Lines below such a table: what is doubtful about print."""
    return ["", *read_json(PAPER_FILE, "what the paper prints")["notes"][key]]


def bits_of(row: dict[str, Any]) -> float | None:
    """The bits of an image's tokens in a printed row: positions, times tokens for each, times log2 K; None without tokens."""
    if "tokens" not in row:
        return None
    side, _, depth = row["tokens"].partition("×")
    return int(side.removesuffix("²")) ** 2 * int(depth or 1) * math.log2(row.get("meant", row["codes"]))


def bits_text(bits: float | None) -> str:
    return NO_VALUE if bits is None else f"{bits:,.0f}"


def by_bits(rows: Iterable[tuple[float | None, list[str]]]) -> list[list[str]]:
    """Rows in the order of their bits; those without last."""
    return [row for _, row in sorted(rows, key=lambda each: math.inf if each[0] is None else each[0])]
