"""What stands behind a row of a table: the printed numbers, and ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from arcvq.tables.paper import Row
from arcvq.tables.results import PRECISIONS, Result

ABSENT, NOTHING = "not measured", "–"
Grouped = dict[str, dict[str, list[Result]]]


def variants(named: dict[str, list[Result]], row: Row) -> Iterator[tuple[str, list[Result]]]:
    """The results of a row, and beside them those of the same run in another precision."""
    labels = {row.run: row.label} | {f"{row.run}-{p}": f"{row.label}, {p}" for p in PRECISIONS}
    for run, label in labels.items():
        if measured := [result for result in named.get(run, []) if not result.diverged]:
            yield label, measured


def printed_numbers(printed: dict[str, Any], data: str, row: Row) -> dict[str, float]:
    if row.print_of is None:
        return {}
    part = printed if row.print_of == "main" else printed.get(row.print_of, {})
    return part.get(data, {}).get(row.run, {})
