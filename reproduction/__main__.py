"""The command line: python -m reproduction run TABLE, python -m reproduction tables."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from arcvq.cli.command import positive_int
from arcvq.errors import ArcvqError, Stopped
from arcvq.storage import write_bytes
from reproduction.documents import make_documents
from reproduction.runs import Measuring, select_runs


def main(words: list[str] | None = None) -> int:
    """Parse the command line, run the command, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m reproduction")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train and measure the runs without a result; --key value sets a setting")
    run.add_argument("table", help="table1, ablations, photos-128, ..., or all")
    run.add_argument("--only", nargs="+", default=[], metavar="NAME")
    run.add_argument("--data", nargs="+", default=[], metavar="NAME")
    run.add_argument("--seeds", nargs="+", type=int, default=[], metavar="N")
    run.add_argument("--suffix", default="", metavar="WORD", help="appended to the names of the runs")
    run.add_argument("--out", type=Path, default=Path("runs/reproduction"))
    run.add_argument("--folder", type=Path, metavar="DIR", help="the images to train on, in place of the data set's")
    run.add_argument("--foreign", metavar="folder:DIR", help="measure tokenizers of photographs on these images, too")
    run.add_argument(
        "--limit", type=positive_int, metavar="N", help="measure only the first N test images; of a prior make N"
    )
    run.add_argument("--list", action="store_true", help="only list the runs without a result")
    run.add_argument("--download", action="store_true", help="download the networks of LPIPS and FID")
    tables = commands.add_parser("tables", help="write all documents with results")
    tables.add_argument("--check", action="store_true", help="only list the documents that are out of date")
    for each in (run, tables):
        each.add_argument("--results", type=Path, default=Path("results"))
    arguments, settings = parser.parse_known_args(words)
    try:
        if arguments.command == "run":
            return _make_runs(arguments, settings)
        if settings:
            parser.error(f"unexpected argument {settings[0]!r}")
        return _write_documents(arguments.results, arguments.check)
    except ArcvqError as error:
        print(f"reproduction: {error}", file=sys.stderr)
        return 2
    except Stopped as stopped:  # by a signal; a checkpoint is there
        print(f"reproduction: {stopped}", file=sys.stderr)
        return 128 + stopped.signal


def _make_runs(arguments: argparse.Namespace, settings: list[str]) -> int:
    """Train and measure the runs without a result, or list them."""
    runs = select_runs(
        arguments.table,
        only=arguments.only,
        data=arguments.data,
        seeds=arguments.seeds,
        suffix=arguments.suffix,
        settings=settings,
        folder=str(arguments.folder) if arguments.folder else None,
    )
    measuring = Measuring(arguments.download, arguments.limit, arguments.foreign)
    _check_foreign(arguments.foreign)
    out, results = arguments.out, arguments.results
    missing = [run for run in runs if not run.is_measured(out, results)]  # fails before the first training
    for number, run in enumerate(missing, 1):
        print(f"{run.key}: {'missing' if arguments.list else f'{number} of {len(missing)}'}", flush=True)
        if not arguments.list:
            run.train_and_measure(out, results, measuring)
    print(f"{len(runs) - len(missing)} of {len(runs)} runs had a result")
    return 0


def _check_foreign(name: str | None) -> None:
    """Fail before the first training unless this is an existing folder of images, folder:DIR, or None."""
    kind, _, path = (name or "").partition(":")
    if name is not None and (kind != "folder" or not Path(path).expanduser().is_dir()):
        raise ArcvqError(f"--foreign {name}: expected folder:DIR with an existing folder of images")


def _write_documents(results: Path, check: bool) -> int:
    """Write the documents that are out of date; with `check` only list them and return 1 if there are any."""
    stale = False
    for path, text in make_documents(results).items():
        if path.is_file() and path.read_text("utf-8") == text:
            continue
        stale = True
        print(f"{path}: {'out of date' if check else 'written'}")
        if not check:
            write_bytes(path, text.encode())
    if not stale:
        print("up to date")
    return int(stale and check)


if __name__ == "__main__":
    sys.exit(main())
