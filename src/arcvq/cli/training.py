"""The commands demo, train and evaluate."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from arcvq.cli.command import Commands, add_import_option, positive_int, print_json, print_skipped
from arcvq.cli.generate import add_sampling_options
from arcvq.errors import ArcvqError


def add_demo(commands: Commands) -> None:
    """Add the command `arcvq demo`."""
    sub = commands.add(
        "demo",
        demo,
        "train vq-vae, arcvq-vae and a prior on the embedded sample, write a report",
        "  arcvq demo --out runs/demo",
    )
    sub.add_argument(
        "--out",
        type=Path,
        default=Path("runs/demo"),
        metavar="DIR",
        help="default: runs/demo; an unfinished demo continues",
    )
    sub.add_argument(
        "--steps", type=positive_int, default=400, metavar="N", help="optimizer steps for each (default: 400)"
    )
    sub.add_argument("--json", action="store_true", help="print the comparison as JSON")


def demo(arguments: argparse.Namespace) -> int:
    """Run the demo and print its comparison."""
    from arcvq.demo import run_demo

    result = run_demo(arguments.out, steps=arguments.steps, quiet=arguments.json)
    if arguments.json:
        print_json(result.to_json())
    else:
        result.print()
    return 0


def add_train(commands: Commands) -> None:
    """Add the command `arcvq train`."""
    sub = commands.add(
        "train",
        train,
        "train a tokenizer, a prior or a task of your own, or continue an unfinished run",
        "  arcvq train sample/arcvq-vae --out runs/first\n"
        "  arcvq train cifar10/arcvq-vae --training.seed 2 --quantizer.arc.scale 20 --out runs/scale-20\n"
        "  arcvq train sample/gpt --tokenizer runs/first --out runs/prior\n"
        "  arcvq train my.yaml --import my_parts.py --dry-run\n\n"
        "Every setting can be set by its dotted name: --data.*, --autoencoder.*, --quantizer.*, --objective.*, --adversarial.*,\n"
        "--training.*; of a prior --tokenizer, --prior.*. --dry-run prints them all with their values. --autoencoder.kind,\n"
        "--quantizer.kind, --objective.kind and --prior.kind choose the part.",
        takes_settings=True,
    )
    sub.add_argument("preset", metavar="PRESET", help="a preset's name (arcvq presets), or a YAML file")
    sub.add_argument("--out", type=Path, metavar="RUN", help="the run's folder")
    sub.add_argument(
        "--init-from",
        metavar="RUN_OR_MODEL",
        help="initialise with the weights of this run or saved tokenizer (training.init_from)",
    )
    sub.add_argument(
        "--dry-run", action="store_true", help="print configuration, parameters, memory and time; write nothing"
    )
    add_import_option(sub)
    sub.add_argument("--quiet", action="store_true", help="no progress")
    sub.add_argument("--json", action="store_true", help="print as JSON")
    sub.usage = (
        "arcvq train PRESET --out RUN [--key value ...] [--init-from RUN_OR_MODEL] [--import FILE.py] [--dry-run] "
        "[--quiet] [--json]"
    )


def train(arguments: argparse.Namespace) -> int:
    """Train into --out, or print what a training needs with --dry-run."""
    from arcvq.distributed import rank
    from arcvq.systems import PriorRunConfig, TokenizerConfig, load_config
    from arcvq.systems import train as run
    from arcvq.training import RunFolder

    settings = list(arguments.settings)
    if arguments.init_from is not None:
        settings += ["--training.init_from", arguments.init_from]
    config = load_config(arguments.preset, settings)
    if arguments.dry_run:
        return _print_dry_run(config, arguments.json)
    if arguments.out is None:
        raise ArcvqError("train needs a folder to write to: give --out RUN (or --dry-run, which writes nothing)")
    finished_file = RunFolder(arguments.out).training
    before = finished_file.read_bytes() if finished_file.is_file() else None
    run(config, arguments.out, quiet=arguments.quiet)
    if rank() != 0:
        return 0
    was_finished = finished_file.read_bytes() == before
    if arguments.json:
        print_json({"run": str(arguments.out), "was_finished": was_finished})
    else:
        next_command = ""
        if isinstance(config, TokenizerConfig):
            next_command = f"; measure it with: arcvq evaluate {arguments.out}"
        elif isinstance(config, PriorRunConfig):
            next_command = f"; make images with: arcvq sample {arguments.out} --out {arguments.out}/images"
        print(f"{arguments.out}: {'already ' if was_finished else ''}trained{next_command}")
    return 0


def _print_dry_run(config: Any, as_json: bool) -> int:
    """Print configuration, parameters, memory and time of a training, from a few measured steps."""
    import dataclasses

    import yaml

    from arcvq.config import to_dict
    from arcvq.systems import dry_run

    result = dry_run(config)
    if as_json:
        print_json({"config": to_dict(config), **dataclasses.asdict(result)})
        return 0
    print(yaml.safe_dump(json.loads(json.dumps(to_dict(config))), sort_keys=False), end="")
    for name, count in result.parameters.items():
        print(f"parameters   {count:,} ({name})")
    for name, text in result.facts.items():
        print(f"{name:12} {text}")
    print(f"memory       {result.memory_bytes / 2**30:.2f} GiB ({result.memory_kind})")
    step = f"{result.seconds_per_step * 1e3:.1f} ms"
    print(f"time         {result.seconds / 60:.1f} minutes for {result.steps:,} steps of {step}, on {result.device}")
    return 0


def add_evaluate(commands: Commands) -> None:
    """Add the command `arcvq evaluate`."""
    sub = commands.add(
        "evaluate",
        evaluate,
        "measure a tokenizer on test images, or the images that a prior makes",
        "  arcvq evaluate runs/first\n  arcvq evaluate runs/first --protocol exact paper --out result.json\n"
        "  arcvq evaluate runs/prior --samples 50000",
    )
    sub.add_argument("run", metavar="RUN", help="a run, a saved tokenizer, or an embedded one (tiny)")
    sub.add_argument("--protocol", nargs="+", default=["exact"], metavar="NAME", help="exact (default), paper, or both")
    sub.add_argument("--data", metavar="NAME", help="data set to measure on (default: the run's)")
    sub.add_argument("--root", metavar="DIR", help="folder of the data sets")
    sub.add_argument(
        "--split",
        metavar="NAME",
        help="which images: for a tokenizer test (default), or all of a folder that it was not trained on; for a prior train (default) "
        "or test",
    )
    add_import_option(sub)
    sub.add_argument("--limit", type=positive_int, metavar="N", help="only the first N images")
    sub.add_argument(
        "--on-error",
        choices=("fail", "skip"),
        help="skip: leave out images that cannot be read, and list them at the end (default: fail, or as the run was trained)",
    )
    sub.add_argument("--metrics", nargs="+", metavar="NAME", help="only these metrics; kid and pfid only when named")
    sub.add_argument(
        "--download", action="store_true", help="download the networks of LPIPS and FID if they are missing"
    )
    sub.add_argument("--out", type=Path, metavar="FILE", help="write the result as JSON")
    sub.add_argument("--json", action="store_true", help="print the result as JSON")
    group = sub.add_argument_group("of a prior", "the images that it makes, beside those of the data set")
    group.add_argument("--samples", type=positive_int, metavar="N", help="how many images to make and compare")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of the images (default: 0)")
    add_sampling_options(group)


def evaluate(arguments: argparse.Namespace) -> int:
    """Measure a run and print its metrics."""
    if arguments.samples is not None:
        return _evaluate_generator(arguments)
    from arcvq.progress import progress_bar
    from arcvq.storage import check_writable_file, write_json
    from arcvq.systems import measure
    from arcvq.terminal import print_measured

    if arguments.out:
        check_writable_file(arguments.out)
    if arguments.split not in (None, "test", "all"):
        raise ArcvqError(f"unknown split {arguments.split!r}: expected test, or all of a folder")
    standard = not any((arguments.data, arguments.root, arguments.split, arguments.limit, arguments.metrics))
    with progress_bar() as progress:
        measured = measure(
            arguments.run,
            list(dict.fromkeys(arguments.protocol)),
            data=arguments.data,
            split=arguments.split or "test",
            root=arguments.root,
            metrics=arguments.metrics,
            limit=arguments.limit,
            download=arguments.download,
            record=standard,
            on_error=_on_error(arguments),
            progress=progress,
        )
    if arguments.out:
        write_json(arguments.out, measured.document)
    if arguments.json:
        print_json(measured.document)
    else:
        print_measured(measured)
    print_skipped(measured.skipped)
    return 0


def _evaluate_generator(arguments: argparse.Namespace) -> int:
    """Measure the images that a prior makes and print their metrics."""
    from arcvq.cli.generate import PRECISION, batch_options, sampling_options
    from arcvq.progress import progress_bar
    from arcvq.storage import check_writable_file, write_json
    from arcvq.systems import measure_generator
    from arcvq.terminal import print_generation

    if arguments.limit is not None:
        raise ArcvqError("--limit is for tokenizers: of a prior, --samples says how many images are made")
    if arguments.split not in (None, "train", "test"):
        raise ArcvqError(f"unknown split {arguments.split!r}: expected train or test")
    if arguments.out:
        check_writable_file(arguments.out)
    options, batch = sampling_options(arguments), batch_options(arguments)
    standard = arguments.split in (None, "train") and arguments.seed == 0 and batch["precision"] == PRECISION
    with progress_bar() as progress:
        measured = measure_generator(
            arguments.run,
            arguments.samples,
            split=arguments.split or "train",
            data=arguments.data,
            root=arguments.root,
            seed=arguments.seed,
            **batch,
            compile=arguments.compile,
            options=options,
            metrics=arguments.metrics,
            download=arguments.download,
            record=standard and not any((options, arguments.data, arguments.root, arguments.metrics)),
            on_error=_on_error(arguments),
            progress=progress,
        )
    if arguments.out:
        write_json(arguments.out, measured.document)
    print_json(measured.document) if arguments.json else print_generation(measured)
    print_skipped(measured.skipped)
    return 0


def _on_error(arguments: argparse.Namespace) -> Any:
    """The setting that --on-error stands for; None without it."""
    return {"fail": "stop", "skip": "skip", None: None}[arguments.on_error]
