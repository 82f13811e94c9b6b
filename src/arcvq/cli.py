"""The command line: parse, call, print."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from arcvq.errors import ArcvqError, Stopped

Handler = Callable[[argparse.Namespace], int]


class Parser(argparse.ArgumentParser):
    """Says what was wrong in one line, and exits with 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = build_parser()
    known, rest = parser.parse_known_args(arguments)
    if rest and not known.takes_settings:
        parser.error(f"unexpected argument {rest[0]!r}")
    known.settings = rest
    handler: Handler = known.handler
    try:
        return handler(known)
    except ArcvqError as error:
        return _fail(str(error))
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        return 128 + signal.SIGINT
    except (MemoryError, RuntimeError) as error:
        if "memory" not in str(error).lower() and not isinstance(error, MemoryError):
            raise
        return _fail(
            f"out of memory: use a smaller batch or model ({str(error).splitlines()[0][:120] if str(error) else 'no memory'})"
        )
    except BrokenPipeError:
        sys.stderr.close()  # whoever was reading has gone: nothing to say, nobody to say it to
        return 0
    except OSError as error:
        return _fail(f"{error.filename or 'file system'}: {error.strerror or error}")
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="arcvq",
        description="Learned discrete image tokens, with codebooks that stay alive.",
        epilog="Begin with: arcvq demo",
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)

    def command(
        name: str, handler: Handler, summary: str, example: str, takes_settings: bool = False
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=f"example:\n{example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        sub.set_defaults(handler=handler, takes_settings=takes_settings)
        return sub

    sub = command(
        "demo",
        demo,
        "train vq-vae and arcvq-vae on the embedded sample, compare them, write a report",
        "  arcvq demo --out runs/demo",
    )
    sub.add_argument(
        "--out",
        type=Path,
        default=Path("runs/demo"),
        metavar="DIR",
        help="default: runs/demo; an unfinished one goes on",
    )
    sub.add_argument(
        "--steps", type=_positive, default=400, metavar="N", help="optimizer steps for each (default: 400)"
    )
    sub.add_argument("--json", action="store_true", help="print the comparison as JSON")

    sub = command("systems", systems, "list the systems that can be trained", "  arcvq systems --json")
    sub.add_argument("--json", action="store_true", help="print as JSON")

    sub = command(
        "presets", presets, "list the presets, or show one", "  arcvq presets\n  arcvq presets cifar10/arcvq-vae"
    )
    sub.add_argument("preset", nargs="?", metavar="PRESET", help="show this one")
    sub.add_argument("--json", action="store_true", help="print as JSON")

    sub = command(
        "train",
        train,
        "train a tokenizer; a run that is already there goes on",
        "  arcvq train sample/arcvq-vae --out runs/first\n"
        "  arcvq train cifar10/arcvq-vae --training.seed 2 --quantizer.arc.scale 20 --out runs/scale-20\n"
        "  arcvq train my.yaml --dry-run\n\n"
        "Every setting can be given by its dotted name: --data.*, --tokenizer.*, --quantizer.*, --objective.*, --training.*;\n"
        "--dry-run prints them all with their values.",
        takes_settings=True,
    )
    sub.add_argument("preset", metavar="PRESET", help="a preset's name (arcvq presets), or a YAML file")
    sub.add_argument("--out", type=Path, metavar="RUN", help="the run's folder")
    sub.add_argument(
        "--dry-run", action="store_true", help="print configuration, parameters, memory and time; write nothing"
    )
    sub.add_argument("--quiet", action="store_true", help="no progress")
    sub.add_argument("--json", action="store_true", help="print as JSON")
    sub.usage = "arcvq train PRESET --out RUN [--key value ...] [--dry-run] [--quiet] [--json]"

    sub = command(
        "evaluate",
        evaluate,
        "measure a run on its test images",
        "  arcvq evaluate runs/first\n  arcvq evaluate runs/first --protocol exact paper --json result.json",
    )
    sub.add_argument("run", metavar="RUN", help="a run, a saved tokenizer, or an embedded one (tiny)")
    sub.add_argument("--protocol", nargs="+", default=["exact"], metavar="NAME", help="exact (default), paper, or both")
    sub.add_argument("--data", metavar="NAME", help="another data set than the run's own")
    sub.add_argument("--root", metavar="DIR", help="where data sets lie")
    sub.add_argument("--limit", type=_positive, metavar="N", help="only the first N images")
    sub.add_argument("--metrics", nargs="+", metavar="NAME", help="only these")
    sub.add_argument(
        "--download", action="store_true", help="fetch the networks of LPIPS and FID if they are not here yet"
    )
    sub.add_argument("--json", type=Path, metavar="FILE", help="write the whole result there")

    sub = command(
        "bench",
        bench,
        "measure speed and memory, beside the plain way and other libraries",
        "  arcvq bench\n  arcvq bench --suite full --out benchmarks/gpu.json --plot benchmarks/gpu.png\n"
        "  arcvq bench --suite tokens --model tiny --data sample --limit 256\n"
        "  arcvq bench --suite steps --presets sample/arcvq-vae --limit 512 --batch-size 128\n"
        "  arcvq bench --suite packing --seconds 4",
    )
    sub.add_argument(
        "--suite",
        default="small",
        metavar="NAME",
        help="small (default; a minute or two on a CPU), full (for a GPU), search (the search alone, large codebooks), "
        "tokens (a trained tokenizer in each precision), steps (whole training steps), or packing (several trainings at a time)",
    )
    sub.add_argument("--device", metavar="NAME", help="default: cuda if there is one, else cpu")
    sub.add_argument(
        "--seconds", type=float, default=0.5, metavar="S", help="time spent on each measurement (default: 0.5)"
    )
    sub.add_argument("--tasks", nargs="+", metavar="TASK", help="only these of: assign arc samp layer")
    sub.add_argument("--out", type=Path, metavar="FILE.json", help="write everything measured there")
    sub.add_argument("--plot", type=Path, metavar="FILE.png", help="draw how time and memory grow with K and N")
    tokens = sub.add_argument_group("for --suite tokens")
    tokens.add_argument("--model", metavar="RUN", help="a run, a saved tokenizer, or an embedded one (tiny)")
    tokens.add_argument("--data", metavar="NAME", help="whose test images: sample, cifar10, folder:PATH, ...")
    tokens.add_argument("--root", type=Path, metavar="DIR", help="where data sets lie")
    tokens.add_argument("--channels-last", action="store_true", help="once more with the channels last")
    tokens.add_argument("--compile", action="store_true", help="once more with the trunk compiled")
    whole = sub.add_argument_group("for --suite tokens, steps and packing")
    whole.add_argument("--limit", type=_positive, metavar="N", help="only the first N images")
    whole.add_argument(
        "--batch-size", type=_positive, metavar="N", help="images at a time (default: chosen to fit, or the preset's)"
    )
    steps = sub.add_argument_group("for --suite steps and --suite packing")
    steps.add_argument(
        "--presets",
        nargs="+",
        metavar="PRESET",
        help="which (default: arcvq-vae, and for steps vq-vae-cosine beside it)",
    )
    steps.add_argument("--ways", nargs="+", metavar="WAY", help="steps: only these, e.g. 'bf16 captured compiled'")

    sub = command(
        "sweep",
        sweep,
        "train and measure the runs behind a table, those that are not in results/ yet",
        "  arcvq sweep table1 --plan\n"
        "  arcvq sweep all --budget 9 --keep-models --suffix bf16 --training.precision bf16 --training.compile true\n\n"
        "Settings of a training (--training.*, --data.*, ...) go to every run. An interrupted sweep goes on with the same command.",
        takes_settings=True,
    )
    sub.add_argument("table", metavar="TABLE", help="all, studies, table1, ablations, components, hyperspherical, ...")
    sub.add_argument("--seeds", type=_positive, nargs="+", metavar="N", help="default: the table's")
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
        type=_positive,
        metavar="N",
        help="trainings at a time (default: up to 4 on a GPU where MPS can be had, which is then started; else 1)",
    )
    sub.add_argument("--budget", type=float, metavar="MINUTES", help="start no run that cannot end in time; stop then")
    sub.add_argument(
        "--split", action="store_true", help="with --budget: start runs that will be cut; they go on next time"
    )
    sub.add_argument("--complete", action="store_true", help="also results that lack a protocol, LPIPS or rFID")
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

    sub = command(
        "tables",
        tables,
        "write RESULTS.md and results/budgets.svg from results/: what the paper prints beside what was measured",
        "  arcvq tables\n  arcvq tables --check",
    )
    sub.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    sub.add_argument("--out", type=Path, default=Path("RESULTS.md"), metavar="FILE.md", help="default: RESULTS.md")
    sub.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the file is out of date")

    sub = command(
        "reconstruct",
        reconstruct,
        "send images through the bottleneck and back",
        "  arcvq reconstruct tiny photo.png --out out",
    )
    _images(sub)
    sub.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the PNGs")

    sub = command("encode", encode, "turn images into tokens", "  arcvq encode tiny photo.png --out tokens.npz")
    _images(sub)
    sub.add_argument("--out", type=Path, required=True, metavar="TOKENS.npz", help="the token file to write")

    sub = command("decode", decode, "turn tokens into images", "  arcvq decode tiny tokens.npz --out out")
    sub.add_argument("run", metavar="RUN", help="a run, a saved tokenizer, or an embedded one (tiny)")
    sub.add_argument("tokens", type=Path, metavar="TOKENS.npz")
    sub.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the PNGs")
    _inference(sub)
    return parser


def demo(arguments: argparse.Namespace) -> int:
    from arcvq.demo import run_demo

    result = run_demo(arguments.out, steps=arguments.steps, quiet=arguments.json)
    if arguments.json:
        _print_json(result.to_json())
    else:
        result.print()
    return 0


def systems(arguments: argparse.Namespace) -> int:
    from arcvq.systems import SYSTEMS

    rows = {name: {"summary": cls.summary, "citation": cls.citation} for name, cls in sorted(SYSTEMS.items())}
    if arguments.json:
        _print_json(rows)
    else:
        for name, row in rows.items():
            print(f"{name:20} {row['summary']}\n{'':20} {row['citation']}")
    return 0


def presets(arguments: argparse.Namespace) -> int:
    from arcvq.config import read_yaml
    from arcvq.systems import preset_names, preset_path, preset_title

    if arguments.preset:
        path = preset_path(arguments.preset)
        _print_json(read_yaml(path)) if arguments.json else print(path.read_text("utf-8", "replace"), end="")
        return 0
    rows = {name: preset_title(name) for name in preset_names()}
    if arguments.json:
        _print_json(rows)
    else:
        for name, title in rows.items():
            print(f"{name:36} {title}")
    return 0


def train(arguments: argparse.Namespace) -> int:
    from arcvq.distributed import rank
    from arcvq.systems import load_system
    from arcvq.training import RunFolder
    from arcvq.training import train as run

    system = load_system(arguments.preset, arguments.settings)
    if arguments.dry_run:
        return _dry_run(system, arguments.json)
    if arguments.out is None:
        raise ArcvqError("train needs a folder to write to: --out RUN (or --dry-run to write nothing)")
    finished = RunFolder(arguments.out).training.is_file()
    run(system, arguments.out, quiet=arguments.quiet)
    if rank() == 0 and arguments.json:
        _print_json({"run": str(arguments.out), "was_finished": finished})
    elif rank() == 0:
        print(
            f"{arguments.out}: {'already ' if finished else ''}trained; measure it with: arcvq evaluate {arguments.out}"
        )
    return 0


def evaluate(arguments: argparse.Namespace) -> int:
    from arcvq.report import print_measured, progress_bar
    from arcvq.storage import check_file, write_json
    from arcvq.training import measure

    if arguments.json:
        check_file(arguments.json)
    whole = not (arguments.data or arguments.root or arguments.limit or arguments.metrics)
    with progress_bar() as progress:
        measured = measure(
            arguments.run,
            arguments.protocol,
            data=arguments.data,
            root=arguments.root,
            metrics=arguments.metrics,
            limit=arguments.limit,
            download=arguments.download,
            record=whole,
            progress=progress,
        )
    print_measured(measured)
    if arguments.json:
        write_json(arguments.json, measured.document)
    return 0


def bench(arguments: argparse.Namespace) -> int:
    from arcvq.bench.suite import ONLY, run_suite, suite
    from arcvq.report import print_bench, progress_bar
    from arcvq.storage import check_file, write_bytes, write_json
    from arcvq.tokenizers.inference import choose_device

    for path in filter(None, (arguments.out, arguments.plot)):
        check_file(path)
    if arguments.suite == "tokens":
        return _bench_tokens(arguments)
    if arguments.suite in ("steps", "packing"):
        return _bench_training(arguments)
    sizes, device = suite(arguments.suite), choose_device(arguments.device)
    with progress_bar() as progress:
        tasks = arguments.tasks or ONLY.get(arguments.suite)
        save = partial(write_json, arguments.out) if arguments.out else None
        document = run_suite(sizes, device, seconds=arguments.seconds, tasks=tasks, progress=progress, save=save)
    print_bench(document)
    if arguments.plot:
        from arcvq.bench.plot import growth_png

        write_bytes(arguments.plot, growth_png(document))
    return 0


def _bench_training(arguments: argparse.Namespace) -> int:
    from arcvq.bench.packing import run_packing
    from arcvq.bench.training import run_steps
    from arcvq.report import print_packing_bench, print_steps_bench, progress_bar
    from arcvq.storage import write_json
    from arcvq.tokenizers.inference import choose_device

    if arguments.plot or arguments.tasks:
        raise ArcvqError(f"--suite {arguments.suite} has no --plot and no --tasks: it measures whole training steps")
    packing = arguments.suite == "packing"
    if packing and arguments.ways:
        raise ArcvqError("--suite packing has no --ways: it measures the fastest way there is")
    run = run_packing if packing else partial(run_steps, ways=arguments.ways)
    with progress_bar() as progress:
        document = run(
            choose_device(arguments.device),
            presets=arguments.presets,
            limit=arguments.limit,
            batch_size=arguments.batch_size,
            seconds=arguments.seconds,
            progress=progress,
        )
    (print_packing_bench if packing else print_steps_bench)(document)
    if arguments.out:
        write_json(arguments.out, document)
    return 0


def _bench_tokens(arguments: argparse.Namespace) -> int:
    from arcvq.bench.tokens import run_tokens
    from arcvq.report import print_tokens_bench, progress_bar
    from arcvq.storage import write_json
    from arcvq.tokenizers.inference import choose_device

    if arguments.model is None or arguments.data is None:
        raise ArcvqError("--suite tokens needs a tokenizer and images: --model RUN --data NAME")
    if arguments.plot or arguments.tasks:
        raise ArcvqError("--suite tokens has no --plot and no --tasks: it measures one tokenizer, at one size")
    with progress_bar() as progress:
        document = run_tokens(
            arguments.model,
            arguments.data,
            choose_device(arguments.device),
            root=arguments.root,
            limit=arguments.limit,
            batch_size=arguments.batch_size,
            seconds=arguments.seconds,
            channels_last=arguments.channels_last,
            compile=arguments.compile,
            progress=progress,
        )
    print_tokens_bench(document)
    if arguments.out:
        write_json(arguments.out, document)
    return 0


def sweep(arguments: argparse.Namespace) -> int:
    with ExitStack() as held:
        return _sweep(arguments, held)


def _sweep(arguments: argparse.Namespace, held: ExitStack) -> int:
    """`held` comes to hold the sweep's lock, unless there is only something to plan."""
    from arcvq.report import print_plan
    from arcvq.storage import check_file, check_folder
    from arcvq.sweep import Places, make_plan, run_plan
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
        _print_json(plan.to_json())
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
        _print_json(outcome.to_json())
    return 1 if outcome.failed else 0


def tables(arguments: argparse.Namespace) -> int:
    from arcvq.storage import check_file, read_text, write_bytes
    from arcvq.tables import group, read_results, results_page
    from arcvq.tables.curves import budget_curves

    figure = arguments.results / "budgets.svg"
    makers: dict[Path, Callable[[str | None], str]] = {
        arguments.out: lambda before: results_page(arguments.results, before),
        figure: lambda before: budget_curves(group(read_results(arguments.results)).get("cifar10", {}), before),
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


def reconstruct(arguments: argparse.Namespace) -> int:
    from arcvq.tokenizers.files import reconstruct_files, write_images

    pixels, names = reconstruct_files(_tokenizer(arguments), arguments.images, **_how(arguments))
    return _report_files(write_images(arguments.out, pixels, names, spare=arguments.images), arguments.json)


def encode(arguments: argparse.Namespace) -> int:
    from arcvq.storage import check_file
    from arcvq.tokenizers.files import encode_files

    if arguments.out.suffix != ".npz":
        raise ArcvqError(f"{arguments.out}: a token file's name ends in .npz")
    check_file(arguments.out)
    tokens = encode_files(_tokenizer(arguments), arguments.images, **_how(arguments))
    tokens.save(arguments.out)
    grid = "×".join(map(str, tokens.tokens.shape[1:]))
    if arguments.json:
        _print_json({"file": str(arguments.out), "images": len(tokens.names), "grid": list(tokens.tokens.shape[1:])})
    else:
        print(f"{arguments.out}: {len(tokens.names)} images as {grid} tokens each")
    return 0


def decode(arguments: argparse.Namespace) -> int:
    from arcvq.tokenizers.files import Tokens, decode_tokens, write_images

    tokens = Tokens.load(arguments.tokens)
    pixels = decode_tokens(_tokenizer(arguments), tokens, **_how(arguments))
    return _report_files(write_images(arguments.out, pixels, tokens.names), arguments.json)


def _dry_run(system: Any, as_json: bool) -> int:
    import dataclasses

    import yaml

    from arcvq.config import to_dict
    from arcvq.training import dry_run

    result = dry_run(system)
    if as_json:
        _print_json({"config": to_dict(system), **dataclasses.asdict(result)})
        return 0
    print(yaml.safe_dump(json.loads(json.dumps(to_dict(system))), sort_keys=False), end="")
    print(f"parameters   {result.parameters:,}")
    print(f"tokens       {result.tokens_per_image} per image")
    print(f"memory       {result.memory_bytes / 2**30:.2f} GiB ({result.memory_kind})")
    step = f"{result.seconds_per_step * 1e3:.1f} ms"
    print(f"time         {result.seconds / 60:.1f} minutes for {result.steps:,} steps of {step}, on {result.device}")
    return 0


def _images(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("run", metavar="RUN", help="a run, a saved tokenizer, or an embedded one (tiny)")
    sub.add_argument("images", nargs="+", metavar="IMAGE", help="image files, or folders of them")
    _inference(sub)


def _inference(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--device", metavar="NAME", help="default: cuda if there is one, else cpu")
    sub.add_argument(
        "--precision", default="fp32", metavar="NAME", help="of the trunk: fp32 (default), tf32, fp16 or bf16"
    )
    sub.add_argument("--batch-size", type=_positive, metavar="N", help="images at a time (default: chosen to fit)")
    sub.add_argument("--channels-last", action="store_true", help="the trunk's weights with the channels last")
    sub.add_argument("--compile", action="store_true", help="torch.compile the trunk: for many images")
    sub.add_argument("--json", action="store_true", help="print as JSON")


def _tokenizer(arguments: argparse.Namespace) -> Any:
    from arcvq.tokenizers import Tokenizer
    from arcvq.tokenizers.inference import check_precision, choose_device

    device = choose_device(arguments.device)
    check_precision(arguments.precision, device)
    tokenizer = Tokenizer.from_pretrained(arguments.run, device=device)
    return tokenizer.speed_up(compile=arguments.compile, channels_last=arguments.channels_last)


def _how(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"precision": arguments.precision, "batch_size": arguments.batch_size}


def _report_files(paths: Sequence[Path], as_json: bool) -> int:
    if as_json:
        _print_json({"files": [str(path) for path in paths]})
    else:
        for path in paths:
            print(path)
    return 0


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text!r}")
    return value


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def _version() -> str:
    from importlib.metadata import version

    return f"arcvq {version('arcvq')}"


def _fail(message: str) -> int:
    print(f"arcvq: {' '.join(message.split())}", file=sys.stderr)
    return 2
