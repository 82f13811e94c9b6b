"""python -m benchmarks --suite NAME measures; python -m benchmarks tables writes the tables of docs/speed.md."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from arcvq.cli.command import positive_int
from arcvq.errors import ArcvqError
from arcvq.storage import check_writable_file, write_json
from arcvq.tokenizers.inference import choose_device
from benchmarks import blocks, compression, loader, sampling, seams, sizes, steps, tokens, vqgan
from benchmarks.measure import describe_machine, measure_limits
from benchmarks.tables import write_tables

Rows = Iterator[dict[str, Any]]
OTHERS = ("tokens", "steps", "blocks", "vqgan", "loader", "seams", "sampling", "compression")


def main(words: list[str] | None = None) -> int:
    """Parse the command line, measure a suite or write the tables, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__, allow_abbrev=False)
    parser.add_argument("command", nargs="?", choices=["tables"], help="write the tables of docs/speed.md")
    parser.add_argument("--check", action="store_true", help="tables: only report whether they are out of date")
    parser.add_argument("--suite", default="small", choices=[*sizes.SUITES, *OTHERS])
    parser.add_argument("--device", metavar="NAME", help="default: cuda if there is one, else cpu")
    parser.add_argument(
        "--seconds", type=float, default=0.5, metavar="S", help="time for each measurement (default: 0.5)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="write the measurements as JSON")
    parser.add_argument(
        "--model", default="tiny", help="tokens, seams, compression: a run or a saved model (default: tiny)"
    )
    parser.add_argument(
        "--data",
        default="sample",
        help="tokens: data set of the test images (default: sample); others: folder:PATH",
    )
    parser.add_argument(
        "--presets",
        nargs="+",
        metavar="PRESET",
        help="steps, sampling: which presets; loader: steps to compare with",
    )
    parser.add_argument("--limit", type=positive_int, metavar="N", help="tokens, steps, loader, seams: only N images")
    parser.add_argument(
        "--batch-size",
        type=positive_int,
        metavar="N",
        help="tokens, steps, loader, sampling: images at a time; seams: tiles",
    )
    parser.add_argument(
        "--tiles", type=positive_int, nargs="+", metavar="SIDE", default=seams.SIDES, help="seams: sides of the tiles"
    )
    parser.add_argument(
        "--image-size", type=positive_int, default=256, metavar="N", help="loader: side of the images (default: 256)"
    )
    parser.add_argument("--threads", type=positive_int, nargs="+", metavar="N", help="loader: numbers of threads")
    arguments = parser.parse_args(words)
    try:
        if arguments.command == "tables":
            return write_tables(arguments.check)
        if arguments.out:
            check_writable_file(arguments.out)
        run_suite(arguments)
    except ArcvqError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    return 0


def run_suite(arguments: argparse.Namespace) -> None:
    """Measure a suite: print each row, and write the file after each, so that an interruption loses at most one."""
    device = choose_device(arguments.device)
    about, measured = prepare_suite(arguments, device)
    document: dict[str, Any] = {**describe_machine(device), "suite": arguments.suite, **about, "rows": []}
    for row in measured:
        print(format_row(row), flush=True)
        document["rows"].append(row)
        if arguments.out:
            write_json(arguments.out, document)


def prepare_suite(arguments: argparse.Namespace, device: torch.device) -> tuple[dict[str, Any], Rows]:
    """The facts that the file states about a suite, and an iterator that measures its rows."""
    seconds, limit = arguments.seconds, arguments.limit
    if arguments.suite == "tokens":
        tokenizer, images = tokens.load_model_and_images(arguments.model, arguments.data, device, limit)
        size = min(len(images), arguments.batch_size or tokenizer.batch_size(images.height, images.width))
        about = {"model": Path(arguments.model).name, "data": arguments.data, "images": len(images), "batch_size": size}
        return about, tokens.token_rows(arguments.model, images, size, device, seconds)
    if arguments.suite == "steps":
        presets = arguments.presets or steps.PRESETS[device.type]
        return {}, steps.step_rows(presets, device, limit, arguments.batch_size, seconds)
    if arguments.suite == "loader":
        size, batch_size = arguments.image_size, arguments.batch_size or 64
        needs = steps.step_rows(arguments.presets or [], device, limit, arguments.batch_size, seconds)
        threads = arguments.threads or loader.THREADS
        rows = loader.loader_rows(arguments.data, size, batch_size, limit, seconds, threads)
        return {"data": Path(arguments.data).name, "image_size": size}, chain(needs, rows)
    if arguments.suite == "seams":
        tokenizer, pictures = seams.load_model_and_images(arguments.model, arguments.data, device, limit)
        size = arguments.batch_size or 1
        names = {"model": Path(arguments.model).name, "data": Path(arguments.data).name}
        about = {**names, "images": len(pictures), "sides": list(pictures[0].shape[2:]), "batch_size": size}
        return about, seams.seam_rows(tokenizer, pictures, arguments.tiles, size)
    if arguments.suite == "compression":
        generator, originals = compression.load_model_and_pictures(arguments.model, arguments.data, limit)
        about = {"model": Path(arguments.model).name, "data": Path(arguments.data).name, "images": len(originals)}
        return about, compression.compression_rows(generator, originals)
    if arguments.suite == "sampling":
        return {}, sampling.sampling_rows(device, arguments.presets, arguments.batch_size)
    if arguments.suite == "vqgan":
        peak = vqgan.bf16_operations_per_second(device)
        return {"bf16_operations_per_second": peak}, vqgan.vqgan_rows(device, peak, seconds)
    limits = measure_limits(device)
    about = {"limits": {"measured": dataclasses.asdict(limits)}}
    if arguments.suite == "blocks":
        return about, blocks.block_rows(device, limits, seconds)
    tasks = ["assign"] if arguments.suite == "search" else sizes.TASKS
    return about, sizes.size_rows(sizes.SUITES[arguments.suite], tasks, device, limits, seconds)


def format_row(row: dict[str, Any]) -> str:
    """The row as one line of text."""
    numbers = [f"{key} {value:,.4g}" for key, value in row.items() if type(value) in (int, float)]
    return "  ".join([f"{row['task']:10}{row['name']:40}", *numbers, row.get("missing", "")]).rstrip()


if __name__ == "__main__":
    sys.exit(main())
