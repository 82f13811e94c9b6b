"""Images to tokens and back: reconstruct, encode, decode."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arcvq.cli.command import Commands, positive, print_json
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
    from arcvq.tokenizers.files import reconstruct_files, write_images

    pixels, names = reconstruct_files(_tokenizer(arguments), arguments.images, **_how(arguments))
    return _report_files(write_images(arguments.out, pixels, names, spare=arguments.images), arguments.json)


def add_encode(commands: Commands) -> None:
    sub = commands.add("encode", encode, "turn images into tokens", "  arcvq encode tiny photo.png --out tokens.npz")
    _images(sub)
    sub.add_argument("--out", type=Path, required=True, metavar="TOKENS.npz", help="the token file to write")


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
        print_json({"file": str(arguments.out), "images": len(tokens.names), "grid": list(tokens.tokens.shape[1:])})
    else:
        print(f"{arguments.out}: {len(tokens.names)} images as {grid} tokens each")
    return 0


def add_decode(commands: Commands) -> None:
    sub = commands.add("decode", decode, "turn tokens into images", "  arcvq decode tiny tokens.npz --out out")
    sub.add_argument("run", metavar="RUN", help="a run, a saved tokenizer, or an embedded one (tiny)")
    sub.add_argument("tokens", type=Path, metavar="TOKENS.npz")
    sub.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the PNGs")
    _inference(sub)


def decode(arguments: argparse.Namespace) -> int:
    from arcvq.tokenizers.files import Tokens, decode_tokens, write_images

    tokens = Tokens.load(arguments.tokens)
    pixels = decode_tokens(_tokenizer(arguments), tokens, **_how(arguments))
    return _report_files(write_images(arguments.out, pixels, tokens.names), arguments.json)


def _images(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("run", metavar="RUN", help="a run, a saved tokenizer, or an embedded one (tiny)")
    sub.add_argument("images", nargs="+", metavar="IMAGE", help="image files, or folders of them")
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
        print_json({"files": [str(path) for path in paths]})
    else:
        for path in paths:
            print(path)
    return 0
