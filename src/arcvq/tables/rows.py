"""What stands behind a row of a table: the printed numbers, and ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from arcvq.errors import ArcvqError
from arcvq.storage import read_json
from arcvq.tables.paper import TABLES, PrintedTable, Row
from arcvq.tables.results import PRECISIONS, Result
from arcvq.tables.shapes import Shape, misfit

PRINTED = Path(__file__).with_name("printed.json")
ABSENT, NOTHING = "not measured", "–"
Grouped = dict[str, dict[str, list[Result]]]


def variants(named: dict[str, list[Result]], row: Row) -> Iterator[tuple[str, list[Result]]]:
    """The results of a row, and beside them those of the same run in another precision."""
    labels = {row.run: row.label} | {f"{row.run}-{p}": f"{row.label}, {p}" for p in PRECISIONS}
    for run, label in labels.items():
        if measured := [result for result in named.get(run, []) if not result.diverged]:
            yield label, measured


def read_printed() -> dict[str, Any]:
    """What the paper prints."""
    printed = read_json(PRINTED, "what the paper prints")
    if wrong := misfit(printed, _printed_shape()):
        raise ArcvqError(f"{PRINTED}: not what the paper prints: {wrong}")
    return printed


def _printed_shape() -> Shape:
    """data set → system → numbers, and so in its appendix; of a table that cannot be measured, the cells of each row."""
    numbers: Shape = {"*": {"*": "a number"}}
    tables = {f"{each.key}?": [_cells_shape(each)] for each in TABLES if isinstance(each, PrintedTable)}
    return {"source?": "text", "appendix?": {"*": numbers}, **tables, "*": numbers}


def _cells_shape(table: PrintedTable) -> Shape:
    kinds = {"": "text or a number", "d": "a whole number"}
    return {f"{key}?": kinds.get(form[-1:], "a number") for key, _, form in table.columns}


def printed_numbers(printed: dict[str, Any], data: str, row: Row) -> dict[str, float]:
    if row.print_of is None:
        return {}
    part = printed if row.print_of == "main" else printed.get(row.print_of, {})
    return part.get(data, {}).get(row.run, {})
