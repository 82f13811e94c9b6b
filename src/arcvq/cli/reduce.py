"""The command reduce."""

from __future__ import annotations

import argparse
from pathlib import Path

from arcvq.cli.command import Commands, add_import_option, model_name, positive_int, print_json
from arcvq.errors import ArcvqError


def add_reduce(commands: Commands) -> None:
    sub = commands.add(
        "reduce",
        reduce,
        "make the codebook of a trained tokenizer smaller, without training",
        "  arcvq reduce tiny --codes 64 --out tiny-64",
    )
    sub.add_argument("run", metavar="RUN", help="a run, a saved tokenizer, or an embedded one (tiny)")
    sub.add_argument("--codes", type=positive_int, required=True, metavar="K", help="how many codes are left")
    sub.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the new tokenizer")
    sub.add_argument("--seed", type=int, default=0, metavar="N", help="of the k-means init (default: 0)")
    sub.add_argument(
        "--space",
        choices=("projected", "raw"),
        default="projected",
        help="of codes behind a layer (simvq, projected): cluster the projected codes (default), or what is projected",
    )
    sub.add_argument("--json", action="store_true", help="print as JSON")
    add_import_option(sub)


def reduce(arguments: argparse.Namespace) -> int:
    """Save a copy of a tokenizer with fewer codes."""
    from arcvq.storage import check_writable_folder
    from arcvq.tokenizers import Tokenizer, reduce_codebook

    if arguments.out.exists():
        raise ArcvqError(f"{arguments.out}: exists: give a new folder")
    check_writable_folder(arguments.out)
    tokenizer = Tokenizer.from_pretrained(arguments.run)
    before = tokenizer.quantizer.config.codebook_size
    reduced = reduce_codebook(tokenizer, arguments.codes, arguments.seed, arguments.space)
    notes = {
        "reduced": f"from {before} codes of {model_name(arguments.run)} to {arguments.codes}, seed {arguments.seed}"
    }
    reduced.save_pretrained(arguments.out, notes=notes)
    if arguments.json:
        print_json({"folder": str(arguments.out), "codes": arguments.codes, "codes_before": before})
    else:
        print(f"{arguments.out}: {arguments.codes} codes instead of {before}")
    return 0
