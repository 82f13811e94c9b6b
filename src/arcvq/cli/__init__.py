"""The command line: parse, call, print."""

from __future__ import annotations

import argparse
import re
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from arcvq.cli.command import Commands, Handler, Parser
from arcvq.cli.exchange import add_export, add_import
from arcvq.cli.generate import add_compress, add_decompress, add_sample
from arcvq.cli.reduce import add_reduce
from arcvq.cli.report import add_report
from arcvq.cli.shards import add_shard
from arcvq.cli.systems import add_presets, add_systems
from arcvq.cli.tokens import add_decode, add_encode, add_reconstruct
from arcvq.cli.training import add_demo, add_evaluate, add_train
from arcvq.errors import ArcvqError, Stopped

# In the order of --help.
COMMANDS = (
    add_demo,
    add_train,
    add_evaluate,
    add_report,
    add_sample,
    add_reconstruct,
    add_shard,
    add_encode,
    add_decode,
    add_import,
    add_export,
    add_reduce,
    add_compress,
    add_decompress,
    add_systems,
    add_presets,
)

# What torch says in a RuntimeError when an allocation fails; other errors speak of memory too.
OUT_OF_MEMORY = re.compile(r"out of memory|allocate memory|not enough memory", re.IGNORECASE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code. An error prints one line, without a traceback."""
    try:
        with _one_line_warnings():
            parser = build_parser()
            known, rest = parser.parse_known_args(arguments)
            if rest and not known.takes_settings:
                known.parser.error(f"unexpected argument {rest[0]!r}")
            known.settings = rest
            _import_parts(getattr(known, "parts", []))
            handler: Handler = known.handler
            return handler(known)
    except ArcvqError as error:
        return _fail(str(error))
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        return 128 + stopped.signal
    except KeyboardInterrupt:
        print("arcvq: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not OUT_OF_MEMORY.search(str(error)):
            raise
        reason = str(error).splitlines()[0][:120] if str(error) else "no memory"
        return _fail(f"out of memory: use a smaller batch or model, or --tile for large images ({reason})")
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe closed it, which is no error
        return 0
    except OSError as error:
        return _fail(f"{error.filename or 'file system'}: {error.strerror or error}")


def build_parser() -> argparse.ArgumentParser:
    """The parser of `arcvq` with all its commands."""
    parser = Parser(
        prog="arcvq",
        description="Learned discrete image tokens, with codebooks that stay alive.",
        epilog="Begin with: arcvq demo",
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = Commands(parser)
    for add in COMMANDS:
        add(commands)
    return parser


def _import_parts(files: Sequence[str]) -> None:
    """Run the files of --import."""
    if files:
        from arcvq.systems import import_parts

        for file in files:
            import_parts(file)


def _version() -> str:
    from importlib.metadata import version

    return f"arcvq {version('arcvq')}"


@contextmanager
def _one_line_warnings() -> Iterator[None]:
    """Warnings inside the block print one line, without a place in the code."""
    before = warnings.formatwarning
    warnings.formatwarning = lambda message, *_: f"arcvq: warning: {' '.join(str(message).split())}\n"
    try:
        yield
    finally:
        warnings.formatwarning = before


def _fail(message: str) -> int:
    """Print the message as one line and return exit code 2."""
    print(f"arcvq: {' '.join(message.split())}", file=sys.stderr)
    return 2
