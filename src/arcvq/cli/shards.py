"""The command shard."""

from __future__ import annotations

import argparse
from pathlib import Path

from arcvq.cli.command import Commands, positive_int, print_json
from arcvq.errors import ArcvqError


def add_shard(commands: Commands) -> None:
    sub = commands.add(
        "shard",
        shard,
        "pack a folder of images into tar shards",
        "  arcvq shard photos --out shards --size 256 --dedupe\n"
        "  arcvq train sample/arcvq-vae --data.name shards:shards --data.image_size 32 --out runs/photos",
    )
    sub.add_argument("folder", type=Path, metavar="FOLDER", help="a folder of images, or of the folders train and test")
    sub.add_argument("--out", type=Path, required=True, metavar="SHARDS", help="the folder to write")
    sub.add_argument("--size", type=positive_int, metavar="N", help="resize the shorter side to it (default: 256)")
    sub.add_argument(
        "--crop", action=argparse.BooleanOptionalAction, default=True, help="cut out the square in the centre"
    )
    sub.add_argument("--dedupe", action="store_true", help="skip images whose pixels equal those of an earlier one")
    sub.add_argument(
        "--shard-size", type=positive_int, default=1 << 29, metavar="BYTES", help="of a shard (default: 512 MiB)"
    )
    sub.add_argument(
        "--format", choices=("jpg", "png", "webp", "keep"), default="jpg", help="keep: the files as they are"
    )
    sub.add_argument("--quality", type=positive_int, default=95, metavar="N", help="of jpg and webp (default: 95)")
    sub.add_argument("--json", action="store_true", help="print as JSON")


def shard(arguments: argparse.Namespace) -> int:
    """Write the shards and print how many there are, and what was skipped."""
    from dataclasses import asdict
    from functools import partial

    from arcvq.data.shard_writer import ShardOptions, write_shards
    from arcvq.progress import progress_bar

    if arguments.format == "keep" and arguments.size is not None:
        raise ArcvqError("--format keep stores the files as they are: leave --size out")
    options = ShardOptions(
        size=arguments.size or 256,
        crop=arguments.crop,
        dedupe=arguments.dedupe,
        shard_size=arguments.shard_size,
        format=arguments.format,
        quality=arguments.quality,
    )
    with progress_bar("sharding") as progress:
        report = write_shards(arguments.folder, arguments.out, options, progress=partial(progress, "images"))
    if arguments.json:
        print_json({"out": str(arguments.out), **asdict(report)})
        return 0
    images, shards = sum(report.images.values()), sum(report.shards.values())
    others = sum(report.not_images.values())
    left_out = f"{len(report.skipped):,} skipped" + (f", {others:,} other files left out" if others else "")
    print(f"{arguments.out}: {images:,} images in {shards:,} shards, {left_out} (report.json)")
    return 0
