"""Helpers that the commands share."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

Handler = Callable[[argparse.Namespace], int]


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line and exit with code 2."""

    def error(self, message: str) -> NoReturn:
        """Print the error as one line and exit with code 2."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


class Commands:
    """The commands of a parser, shown in the order in which they are added."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)

    def add(
        self, name: str, handler: Handler, summary: str, example: str, takes_settings: bool = False
    ) -> argparse.ArgumentParser:
        """Add a command and return its parser. With `takes_settings`, unknown options reach the handler as settings."""
        sub = self._commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=f"example:\n{example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        sub.set_defaults(handler=handler, takes_settings=takes_settings, parser=sub)
        return sub


def add_import_option(sub: argparse.ArgumentParser) -> None:
    """Add --import, for commands that build or load models."""
    sub.add_argument(
        "--import",
        dest="parts",
        action="append",
        default=[],
        metavar="FILE.py",
        help="run this Python file first: it registers quantizers, networks, objectives or tasks of your own",
    )


def positive_int(text: str) -> int:
    """An argument type: a whole number above 0."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text!r}")
    return value


def model_name(source: str) -> str:
    """What a model card calls a model: of a folder its name alone, because its path means nothing elsewhere."""
    path = Path(source).expanduser()
    return path.resolve().name if path.exists() else source


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_skipped(skipped: dict[str, str]) -> None:
    """List the images that were left out on stderr."""
    if skipped:
        print(f"{len(skipped)} images cannot be read and were left out:", file=sys.stderr)
    for name, reason in skipped.items():
        print(f"  {name}: {reason}", file=sys.stderr)
