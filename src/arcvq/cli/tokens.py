"""Images to tokens and back: reconstruct, encode, decode."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from arcvq.cli.command import Commands, add_import, positive, print_json
from arcvq.errors import ArcvqError


def add_reconstruct(commands: Commands) -> None:
    sub = commands.add(
        "reconstruct",
        reconstruct,
        "send images through the bottleneck and back",
        "  arcvq reconstruct tiny photo.png --out out",
    )
    _images(sub)
    sub.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the PNGs")


def reconstruct(arguments: argparse.Namespace) -> int:
    from arcvq.terminal import progress_bar
    from arcvq.tokenizers.files import reconstruct_files

    tokenizer = _tokenizer(arguments)
    skipped: dict[str, str] = {}
    with progress_bar("reconstructing") as progress:
        how = _reading(arguments, progress, skipped)
        written = reconstruct_files(tokenizer, arguments.images, arguments.out, **how)
    files = [str(path) for path in written]
    print_json({"files": files, "skipped": skipped}) if arguments.json else print("\n".join(files))
    _print_skipped(skipped)
    return 0


def add_encode(commands: Commands) -> None:
    sub = commands.add("encode", encode, "turn images into tokens", "  arcvq encode tiny photo.png --out tokens.npz")
    _images(sub)
    sub.add_argument("--out", type=Path, required=True, metavar="TOKENS.npz", help="the token file to write")


def encode(arguments: argparse.Namespace) -> int:
    from arcvq.storage import check_writable_file
    from arcvq.terminal import progress_bar
    from arcvq.tokenizers.files import encode_files

    if arguments.out.suffix != ".npz":
        raise ArcvqError(f"{arguments.out}: a token file's name ends in .npz")
    check_writable_file(arguments.out)
    tokenizer = _tokenizer(arguments)
    skipped: dict[str, str] = {}
    with progress_bar("encoding") as progress:
        tokens = encode_files(tokenizer, arguments.images, **_reading(arguments, progress, skipped))
    tokens.save(arguments.out)
    images, grid = len(tokens.names), list(tokens.tokens.shape[1:])
    if arguments.json:
        print_json({"file": str(arguments.out), "images": images, "grid": grid, "skipped": skipped})
    else:
        print(f"{arguments.out}: {images} images as {'×'.join(map(str, grid))} tokens each")
    _print_skipped(skipped)
    return 0


def add_decode(commands: Commands) -> None:
    sub = commands.add("decode", decode, "turn tokens into images", "  arcvq decode tiny tokens.npz --out out")
    sub.add_argument("run", metavar="RUN", help="a run, a saved tokenizer, or an embedded one (tiny)")
    sub.add_argument("tokens", type=Path, metavar="TOKENS.npz")
    sub.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the PNGs")
    _inference(sub)


def decode(arguments: argparse.Namespace) -> int:
    from arcvq.terminal import progress_bar
    from arcvq.tokenizers.files import Tokens, decode_tokens

    tokens = Tokens.load(arguments.tokens)
    tokenizer = _tokenizer(arguments)
    with progress_bar("decoding") as progress:
        written = decode_tokens(tokenizer, tokens, arguments.out, **_how(arguments, progress))
    files = [str(path) for path in written]
    print_json({"files": files}) if arguments.json else print("\n".join(files))
    return 0


def _images(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("run", metavar="RUN", help="a run, a saved tokenizer, or an embedded one (tiny)")
    sub.add_argument("images", nargs="+", metavar="IMAGE", help="image files, or folders of them")
    sub.add_argument(
        "--on-error",
        choices=("fail", "skip"),
        default="fail",
        help="skip: leave out the images that cannot be read, and list them at the end (default: fail)",
    )
    _inference(sub)


def _inference(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--device", metavar="NAME", help="default: cuda if there is one, else cpu")
    sub.add_argument(
        "--precision", default="fp32", metavar="NAME", help="of the trunk: fp32 (default), tf32, fp16 or bf16"
    )
    sub.add_argument("--batch-size", type=positive, metavar="N", help="images at a time (default: chosen to fit)")
    sub.add_argument("--channels-last", action="store_true", help="the trunk's weights with the channels last")
    sub.add_argument("--compile", action="store_true", help="torch.compile the trunk: for many images")
    sub.add_argument("--json", action="store_true", help="print as JSON")
    add_import(sub)


def _tokenizer(arguments: argparse.Namespace) -> Any:
    from arcvq.tokenizers import Tokenizer
    from arcvq.tokenizers.inference import check_precision, choose_device

    device = choose_device(arguments.device)
    check_precision(arguments.precision, device)
    tokenizer = Tokenizer.from_pretrained(arguments.run, device=device)
    return tokenizer.speed_up(compile=arguments.compile, channels_last=arguments.channels_last)


def _how(arguments: argparse.Namespace, progress: Callable[[str, int, int], None]) -> dict[str, Any]:
    return {
        "precision": arguments.precision,
        "batch_size": arguments.batch_size,
        "progress": partial(progress, "images"),
    }


def _reading(
    arguments: argparse.Namespace, progress: Callable[[str, int, int], None], skipped: dict[str, str]
) -> dict[str, Any]:
    return {**_how(arguments, progress), "skipped": skipped if arguments.on_error == "skip" else None}


def _print_skipped(skipped: dict[str, str]) -> None:
    if skipped:
        print(f"{len(skipped)} of the images cannot be read and were left out:", file=sys.stderr)
    for name, reason in skipped.items():
        print(f"  {name}: {reason}", file=sys.stderr)
