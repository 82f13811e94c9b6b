"""Speed and memory: bench."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from arcvq.cli.command import Commands, duration, positive
from arcvq.errors import ArcvqError


def add_bench(commands: Commands) -> None:
    sub = commands.add(
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
        "--seconds", type=duration, default=0.5, metavar="S", help="time spent on each measurement (default: 0.5)"
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
    whole.add_argument("--limit", type=positive, metavar="N", help="only the first N images")
    whole.add_argument(
        "--batch-size", type=positive, metavar="N", help="images at a time (default: chosen to fit, or the preset's)"
    )
    steps = sub.add_argument_group("for --suite steps and --suite packing")
    steps.add_argument(
        "--presets",
        nargs="+",
        metavar="PRESET",
        help="which (default: arcvq-vae, and for steps vq-vae-cosine beside it)",
    )
    steps.add_argument("--ways", nargs="+", metavar="WAY", help="steps: only these, e.g. 'bf16 captured compiled'")


def bench(arguments: argparse.Namespace) -> int:
    from arcvq.bench.suite import ONLY, run_suite, suite
    from arcvq.storage import check_file, write_bytes, write_json
    from arcvq.terminal import print_bench, progress_bar
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
    from arcvq.storage import write_json
    from arcvq.terminal import print_packing_bench, print_steps_bench, progress_bar
    from arcvq.tokenizers.inference import choose_device

    if arguments.plot or arguments.tasks:
        raise ArcvqError(f"--suite {arguments.suite} has no --plot and no --tasks: it measures whole training steps")
    packing = arguments.suite == "packing"
    if arguments.model or arguments.data:
        raise ArcvqError(f"--suite {arguments.suite} has no --model and no --data: it trains presets on noise")
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
            save=partial(write_json, arguments.out) if arguments.out else None,
        )
    (print_packing_bench if packing else print_steps_bench)(document)
    return 0


def _bench_tokens(arguments: argparse.Namespace) -> int:
    from arcvq.bench.tokens import run_tokens
    from arcvq.storage import write_json
    from arcvq.terminal import print_tokens_bench, progress_bar
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
