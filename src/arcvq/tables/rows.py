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
    if row.run in named:
        yield row.label, named[row.run]
    for precision in PRECISIONS:
        if f"{row.run}-{precision}" in named:
            yield f"{row.label}, {precision}", named[f"{row.run}-{precision}"]


def printed_numbers(printed: dict[str, Any], data: str, row: Row) -> dict[str, float]:
    if row.print_of is None:
        return {}
    part = printed if row.print_of == "main" else printed.get(row.print_of, {})
    return part.get(data, {}).get(row.run, {})
