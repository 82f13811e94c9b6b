"""The runs behind a table: sweep."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from arcvq.cli.command import Commands, positive, print_json
from arcvq.errors import ArcvqError


def add_sweep(commands: Commands) -> None:
    sub = commands.add(
        "sweep",
        sweep,
        "train and measure the runs behind a table, those that are not in results/ yet",
        "  arcvq sweep table1 --plan\n"
        "  arcvq sweep all --budget 9 --keep-models --suffix bf16 --training.precision bf16 --training.compile true\n\n"
        "Settings of a training (--training.*, --data.*, ...) go to every run. An interrupted sweep goes on with the same command.",
        takes_settings=True,
    )
    sub.add_argument("table", metavar="TABLE", help="all, studies, table1, ablations, components, hyperspherical, ...")
    sub.add_argument("--seeds", type=positive, nargs="+", metavar="N", help="default: the table's")
    sub.add_argument("--data", nargs="+", metavar="NAME", help="data sets (default: the table's)")
    sub.add_argument("--only", nargs="+", metavar="NAME", help="only runs of these names, e.g. arcvq-vae-top1")
    sub.add_argument(
        "--out", type=Path, default=Path("runs/sweep"), metavar="DIR", help="run folders (default: runs/sweep)"
    )
    sub.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    sub.add_argument("--models", type=Path, default=Path("models"), metavar="DIR", help="default: models")
    sub.add_argument(
        "--keep-models", action="store_true", help="copy the models of Table 1 and arcvq-scaffold into --models"
    )
    sub.add_argument(
        "--parallel",
        type=positive,
        metavar="N",
        help="trainings at a time (default: up to 4 on a GPU where MPS can be had, which is then started; else 1)",
    )
    sub.add_argument("--budget", type=float, metavar="MINUTES", help="start no run that cannot end in time; stop then")
    sub.add_argument(
        "--split", action="store_true", help="with --budget: start runs that will be cut; they go on next time"
    )
    sub.add_argument(
        "--complete",
        action="store_true",
        help="also results that lack a protocol, LPIPS or rFID, or have an older revision's; trained anew where no weights are kept",
    )
    sub.add_argument("--suffix", metavar="WORD", help="ends the names of the results, e.g. bf16")
    sub.add_argument(
        "--download", action="store_true", help="fetch the networks of LPIPS and FID if they are not here yet"
    )
    sub.add_argument(
        "--archive",
        type=Path,
        metavar="FILE.tar",
        help="what this sweep measures and keeps, as one file, after every run",
    )
    sub.add_argument("--no-dry-run", action="store_true", help="no trial steps where no time is known")
    sub.add_argument("--plan", action="store_true", help="say what would run and how long it takes; run nothing")
    sub.add_argument("--json", action="store_true", help="print as JSON")
    sub.usage = "arcvq sweep TABLE [--plan] [--budget MINUTES] [--parallel N] [options] [--key value ...]"


def sweep(arguments: argparse.Namespace) -> int:
    with ExitStack() as held:
        return _sweep(arguments, held)


def _sweep(arguments: argparse.Namespace, held: ExitStack) -> int:
    """`held` comes to hold the sweep's lock, unless there is only something to plan."""
    from arcvq.storage import check_file, check_folder
    from arcvq.sweep import Places, make_plan, run_plan
    from arcvq.terminal import print_plan
    from arcvq.tokenizers.inference import choose_device

    if arguments.archive:
        check_file(arguments.archive)
    for folder in (arguments.out, arguments.results, arguments.models):
        check_folder(folder)
    if arguments.budget is not None and not arguments.budget > 0:
        raise ArcvqError(f"--budget {arguments.budget}: expected a number of minutes above 0")
    if arguments.split and arguments.budget is None:
        raise ArcvqError("--split needs a --budget: without one nothing is cut")
    places = Places(arguments.out, arguments.results, arguments.models, keep_models=arguments.keep_models)

    def hold() -> None:
        if not arguments.plan:
            held.enter_context(places.locked())

    began, device = time.monotonic(), choose_device(None)
    plan = make_plan(
        arguments.table,
        places,
        data=arguments.data,
        seeds=arguments.seeds,
        only=arguments.only,
        settings=arguments.settings,
        suffix=arguments.suffix,
        complete=arguments.complete,
        device=device,
        parallel=arguments.parallel,
        dry_runs=not arguments.no_dry_run,
        say=lambda line: print(line, file=sys.stderr, flush=True),
        hold=hold,
    )
    if arguments.plan and arguments.json:
        print_json(plan.to_json())
        return 0
    if not arguments.json:
        print_plan(plan)
    if arguments.plan:
        return 0

    def say(line: str) -> None:
        print(line, file=sys.stderr if arguments.json else sys.stdout, flush=True)

    # Trial steps count as well: the budget is the command's.
    left = None if arguments.budget is None else arguments.budget - (time.monotonic() - began) / 60
    outcome = run_plan(
        plan, budget=left, split=arguments.split, download=arguments.download, archive=arguments.archive, say=say
    )
    if arguments.json:
        print_json(outcome.to_json())
    return 1 if outcome.failed else 0
