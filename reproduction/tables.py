"""The paper's tables: what it prints beside what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from arcvq.metrics import metric_label
from arcvq.storage import read_json
from reproduction.results import Result, Results, mean

PRINTED = Path(__file__).with_name("printed.json")
NOTHING, ABSENT = "–", "not measured"


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """The first `left` columns are text."""
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * left + "---:|" * (len(headings) - left)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def heading(metric: str, protocol: str = "") -> str:
    label = metric_label(metric)
    arrow = {"up": " ↑", "down": " ↓", "none": ""}[label.better]
    return f"{label.label}{f', {protocol}' if protocol else ''}{arrow}"


def cells(results: Sequence[Result], protocol: str, metrics: Sequence[str]) -> list[str]:
    """How many seeds were measured, then their means."""
    measured = [result for result in results if protocol in result.document["protocols"]]
    if not measured:
        word = "diverged" if results and all(result.diverged for result in results) else ABSENT
        return [word, *[NOTHING] * len(metrics)]
    diverged = sum(result.diverged for result in results)
    seeds = f"{len(measured)}" + (f" ({diverged} diverged)" if diverged else "")
    means = [mean(measured, protocol, metric) for metric in metrics]
    return [seeds, *(found.text(m, len(measured)) if found else NOTHING for m, found in zip(metrics, means))]


def trained(results: Sequence[Result]) -> list[str]:
    """A line that says how, and one for the mark."""
    if not results:
        return []
    how = " and ".join(dict.fromkeys(f"in {result.precision} on {result.device}" for result in results))
    marked = any(result.first_revision(protocol) for result in results for protocol in result.document["protocols"])
    return ["", f"Trained {how}.", *["¹ Measured under the first revision of the protocol."] * marked]


def print_beside_ours(table: dict[str, Any], results: Results, data: Sequence[str] | None = None) -> list[str]:
    """For each system what the paper prints, then ours under each protocol."""
    metrics, labels = table["metrics"], table["labels"]
    rows: list[list[str]] = []
    shown: list[Result] = []
    for where in data or table["data"]:
        for run in table["runs"]:
            about = [where, labels[run]]
            if numbers := printed(where, run, table.get("print")):
                texts = [metric_label(m).text(numbers[m]) if m in numbers else NOTHING for m in metrics]
                rows.append([*about, "print", NOTHING, *texts, NOTHING])
            ours = results.get(where, run)
            shown += ours
            for protocol in table.get("protocols", ("paper", "exact")) if ours else ():
                mark = "¹" if any(result.first_revision(protocol) for result in ours) else ""
                rows.append([*about, f"{protocol}{mark}", *cells(ours, protocol, [*metrics, "usage"])])
            if not ours:
                rows.append([*about, ABSENT, *[NOTHING] * (len(metrics) + 2)])
    return [
        *markdown(["data", "system", "", "seeds", *map(heading, [*metrics, "usage"])], rows, left=3),
        *trained(shown),
    ]


def printed(data: str, run: str, part: str | None = None) -> dict[str, float]:
    """The paper's numbers; its appendix prints others for some systems."""
    document = read_json(PRINTED, "what the paper prints")
    parts = [document[part]] if part else []
    for each in (*parts, document):
        if run in each.get(data, {}):
            found: dict[str, float] = each[data][run]
            return found
    return {}


def not_measured() -> list[str]:
    rows = [[table["title"], table["why"]] for table in read_json(PRINTED, "what the paper prints")["not measured"]]
    return markdown(["table", "why"], rows, left=2)
