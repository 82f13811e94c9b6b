"""The command report."""

from __future__ import annotations

import argparse
from pathlib import Path

from arcvq.cli.command import Commands, add_import_option, print_json


def add_report(commands: Commands) -> None:
    """Add the command `arcvq report`."""
    sub = commands.add(
        "report",
        report,
        "write a page that compares runs of tokenizers, or of priors, finished or not, with figures and a diagnosis",
        "  arcvq report runs/first --out runs/first/report\n  arcvq report runs/plain runs/arc --out runs/compared",
    )
    sub.add_argument("runs", nargs="+", metavar="RUN", help="run folders, all of one data set")
    sub.add_argument("--out", type=Path, required=True, metavar="DIR", help="write index.html there")
    add_import_option(sub)
    sub.add_argument("--json", action="store_true", help="print the path of the page and the findings as JSON")


def report(arguments: argparse.Namespace) -> int:
    """Write the report page and print its path."""
    from arcvq.report import make_report

    result = make_report(arguments.runs, arguments.out)
    if arguments.json:
        print_json(result.to_json())
    else:
        print(f"report: {result.page}")
    return 0
