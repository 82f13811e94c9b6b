"""The page of results: tables."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from arcvq.cli.command import Commands


def add_tables(commands: Commands) -> None:
    sub = commands.add(
        "tables",
        tables,
        "write RESULTS.md and results/budgets.svg from results/: what the paper prints beside what was measured",
        "  arcvq tables\n  arcvq tables --check",
    )
    sub.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    sub.add_argument("--out", type=Path, default=Path("RESULTS.md"), metavar="FILE.md", help="default: RESULTS.md")
    sub.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the file is out of date")


def tables(arguments: argparse.Namespace) -> int:
    from arcvq.storage import check_file, read_text, write_bytes
    from arcvq.tables import group, read_results, results_page
    from arcvq.tables.curves import budget_curves
    from arcvq.tables.step_times import read_step_times

    def curves(before: str | None) -> str:
        named = group(read_results(arguments.results)).get("cifar10", {})
        return budget_curves(named, before, read_step_times(arguments.results))

    makers: dict[Path, Callable[[str | None], str]] = {
        arguments.out: lambda before: results_page(arguments.results, before),
        arguments.results / "budgets.svg": curves,
    }
    stale = False
    for path, make in makers.items():
        check_file(path)
        before = read_text(path) if path.exists() else None
        after = make(before)
        if after == before:
            print(f"{path}: up to date")
        elif arguments.check:
            print(f"{path}: out of date: run arcvq tables")
            stale = True
        else:
            write_bytes(path, after.encode())
            print(f"{path}: written")
    return 1 if stale else 0
