"""The page of results: tables."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from arcvq.cli.command import Commands
from arcvq.errors import ArcvqError


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

    if arguments.out.suffix.lower() not in (".md", ".markdown"):  # an input among the results, say
        raise ArcvqError(f"--out {arguments.out}: expected a page in Markdown, NAME.md")

    makers: dict[Path, Callable[[str | None], str]] = {
        arguments.out: lambda before: results_page(arguments.results, before),
        arguments.results / "budgets.svg": curves,
    }
    for path in makers:
        check_file(path)
    # All are made before one is written.
    before = {path: read_text(path) if path.exists() else None for path in makers}
    made = {path: make(before[path]) for path, make in makers.items()}
    stale = False
    for path, after in made.items():
        if after == before[path]:
            print(f"{path}: up to date")
        elif arguments.check:
            print(f"{path}: out of date: run arcvq tables")
            stale = True
        else:
            write_bytes(path, after.encode())
            print(f"{path}: written")
    return 1 if stale else 0
