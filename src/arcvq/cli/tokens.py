"""The commands reconstruct, encode and decode."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from arcvq.cli.command import Commands, add_import_option, positive_int, print_json, print_skipped
from arcvq.errors import ArcvqError


def add_reconstruct(commands: Commands) -> None:
    """Add the command `arcvq reconstruct`."""
    sub = commands.add(
        "reconstruct",
        reconstruct,
        "encode and decode images, and save the reconstructions",
        "  arcvq reconstruct tiny photo.png --out out\n"
        "  arcvq reconstruct tiny large.png --size original --tile 512 --out out",
    )
    _add_image_arguments(sub)
    sub.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the PNGs")


def reconstruct(arguments: argparse.Namespace) -> int:
    """Write the reconstructions of image files as PNGs."""
    from arcvq.progress import progress_bar
    from arcvq.tokenizers.files import reconstruct_files

    tokenizer = _load_tokenizer(arguments)
    skipped: dict[str, str] = {}
    with progress_bar("reconstructing") as progress:
        options = _reading_options(arguments, progress, skipped)
        written = reconstruct_files(tokenizer, arguments.images, arguments.out, **options)
    files = [str(path) for path in written]
    print_json({"files": files, "skipped": skipped}) if arguments.json else print("\n".join(files))
    print_skipped(skipped)
    return 0


def add_encode(commands: Commands) -> None:
    """Add the command `arcvq encode`."""
    sub = commands.add(
        "encode",
        encode,
        "turn images into tokens",
        "  arcvq encode tiny photo.png --out tokens.npz\n  arcvq encode tiny shards:SHARDS --out token-shards",
    )
    _add_image_arguments(sub)
    sub.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="TOKENS",
        help="the token file to write, NAME.npz; of shards: the folder, where an unfinished run continues",
    )


def encode(arguments: argparse.Namespace) -> int:
    """Run `arcvq encode`: write the tokens of images to one .npz file, or those of image shards to token shards."""
    from arcvq.progress import progress_bar
    from arcvq.storage import check_writable_file
    from arcvq.tokenizers.files import encode_files
    from arcvq.tokenizers.token_shards import holds_tar_files, is_shards

    if any(map(is_shards, arguments.images)):
        return _encode_shards(arguments)
    if arguments.out.suffix != ".npz":
        for folder in filter(holds_tar_files, arguments.images):
            raise ArcvqError(f"{folder}: holds tar files: write shards:{folder} for shards of images")
        raise ArcvqError(f"{arguments.out}: a token file's name ends in .npz")
    check_writable_file(arguments.out)
    tokenizer = _load_tokenizer(arguments)
    skipped: dict[str, str] = {}
    with progress_bar("encoding") as progress:
        tokens = encode_files(tokenizer, arguments.images, **_reading_options(arguments, progress, skipped))
    tokens.save(arguments.out)
    # Without one grid for all, JSON has null, and the line the number of tokens.
    grid = list(tokens.tokens.shape[1:]) if tokens.grids is None else None
    if arguments.json:
        print_json({"file": str(arguments.out), "images": len(tokens), "grid": grid, "skipped": skipped})
    else:
        amount = f"{'×'.join(map(str, grid))} tokens each" if grid else f"{tokens.tokens.numel():,} tokens in all"
        print(f"{arguments.out}: {len(tokens)} images as {amount}")
    print_skipped(skipped)
    return 0


def _encode_shards(arguments: argparse.Namespace) -> int:
    """Write the tokens of image shards as token shards."""
    from arcvq.progress import progress_bar
    from arcvq.storage import check_writable_folder
    from arcvq.tokenizers.token_shards import encode_shards

    if len(arguments.images) > 1:
        raise ArcvqError("shards are encoded alone: give one folder of shards, and no other images")
    if arguments.out.suffix == ".npz":
        raise ArcvqError(f"{arguments.out}: the tokens of shards are shards: give --out the name of a folder")
    if arguments.batch_size is not None:
        raise ArcvqError("of shards, a fixed number of images is encoded at a time: leave --batch-size out")
    if arguments.size is not None or _tile(arguments) is not None:
        raise ArcvqError("images in shards are fitted to the tokenizer's size, and whole: leave --size and --tile out")
    check_writable_folder(arguments.out)
    tokenizer = _load_tokenizer(arguments)
    with progress_bar("encoding") as progress:
        result = encode_shards(
            tokenizer,
            arguments.images[0],
            arguments.out,
            precision=arguments.precision,
            skip_unreadable=arguments.on_error == "skip",
            progress=partial(progress, "images"),
        )
    if arguments.json:
        counts = {"images": result.images, "shards": result.shards, "grid": list(result.grid)}
        print_json({"folder": str(arguments.out), **counts, "skipped": result.skipped})
    else:
        kept = f", {result.kept:,} of them were there" if result.kept else ""
        grid = "×".join(map(str, result.grid))
        print(f"{arguments.out}: {result.images:,} images as {grid} tokens each in {result.shards:,} shards{kept}")
    print_skipped(result.skipped)
    return 0


def add_decode(commands: Commands) -> None:
    """Add the command `arcvq decode`."""
    sub = commands.add(
        "decode",
        decode,
        "turn tokens into images",
        "  arcvq decode tiny tokens.npz --out out\n  arcvq decode tiny token-shards --out out",
    )
    sub.add_argument("run", metavar="RUN", help="a run, a saved tokenizer, or an embedded one (tiny)")
    sub.add_argument("tokens", type=Path, metavar="TOKENS", help="a token file (.npz), or a folder of token shards")
    sub.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the PNGs")
    _add_inference_options(sub)


def decode(arguments: argparse.Namespace) -> int:
    """Write the images of a token file, or of token shards, as PNGs."""
    from arcvq.progress import progress_bar
    from arcvq.tokenizers.files import decode_tokens
    from arcvq.tokenizers.token_file import Tokens
    from arcvq.tokenizers.token_shards import decode_shards

    folder = arguments.tokens if arguments.tokens.is_dir() else None
    tokens = None if folder else Tokens.load(arguments.tokens)
    tokenizer = _load_tokenizer(arguments)
    with progress_bar("decoding") as progress:
        options = _inference_options(arguments, progress)
        if tokens is None:
            written = decode_shards(tokenizer, arguments.tokens, arguments.out, **options)
        else:
            written = decode_tokens(tokenizer, tokens, arguments.out, **options)
    files = [str(path) for path in written]
    print_json({"files": files}) if arguments.json else print("\n".join(files))
    return 0


def _add_image_arguments(sub: argparse.ArgumentParser) -> None:
    """Add the arguments that name a tokenizer and images."""
    sub.add_argument("run", metavar="RUN", help="a run, a saved tokenizer, or an embedded one (tiny)")
    sub.add_argument("images", nargs="+", metavar="IMAGE", help="image files, or folders of them")
    sub.add_argument(
        "--size",
        type=image_size,
        metavar="SIZE",
        help="fit images to N×N (N), or to height×width (HxW); original: each keeps its size (default: the tokenizer's)",
    )
    sub.add_argument(
        "--on-error",
        choices=("fail", "skip"),
        default="fail",
        help="skip: leave out images that cannot be read, and list them at the end (default: fail)",
    )
    _add_inference_options(sub)


def _add_inference_options(sub: argparse.ArgumentParser) -> None:
    """Add --precision, --batch-size, --compile, --channels-last and --device."""
    sub.add_argument("--device", metavar="NAME", help="default: cuda if there is one, else cpu")
    sub.add_argument(
        "--precision", default="fp32", metavar="NAME", help="of encoder and decoder: fp32 (default), tf32, fp16 or bf16"
    )
    sub.add_argument(
        "--batch-size", type=positive_int, metavar="N", help="images, or tiles, at a time (default: chosen to fit)"
    )
    sub.add_argument(
        "--tile",
        type=positive_int,
        metavar="SIDE",
        help="for large images: overlapping tiles of SIDE×SIDE pixels go through encoder and decoder",
    )
    sub.add_argument(
        "--margin", type=int, metavar="N", help="pixels of context around a tile (default: an eighth of its side)"
    )
    sub.add_argument("--channels-last", action="store_true", help="store the weights with the channels last")
    sub.add_argument("--compile", action="store_true", help="compile encoder and decoder: faster for many images")
    sub.add_argument("--json", action="store_true", help="print as JSON")
    add_import_option(sub)


def _load_tokenizer(arguments: argparse.Namespace) -> Any:
    """The tokenizer that the arguments name, on its device."""
    from arcvq.tokenizers import Tokenizer
    from arcvq.tokenizers.inference import check_precision, choose_device

    device = choose_device(arguments.device)
    check_precision(arguments.precision, device)
    tokenizer = Tokenizer.from_pretrained(arguments.run, device=device)
    return tokenizer.speed_up(compile=arguments.compile, channels_last=arguments.channels_last)


def image_size(text: str) -> tuple[int, int] | str:
    """An argument type: a side, a height and a width (HxW), or `original`."""
    sides = text.split("x") if "x" in text else [text, text]
    if text != "original" and not (len(sides) == 2 and all(side.isascii() and side.isdigit() for side in sides)):
        raise argparse.ArgumentTypeError(f"expected a side, height and width as HxW, or original, got {text!r}")
    return text if text == "original" else (int(sides[0]), int(sides[1]))


def _tile(arguments: argparse.Namespace) -> Any:
    """The tile that --tile and --margin describe; None without them."""
    from arcvq.tokenizers import Tile

    if arguments.tile is None and arguments.margin is not None:
        raise ArcvqError("--margin is that of tiles: give --tile too")
    return None if arguments.tile is None else Tile(arguments.tile, arguments.margin)


def _inference_options(arguments: argparse.Namespace, progress: Callable[[str, int, int], None]) -> dict[str, Any]:
    """The keyword arguments of a pass over many images."""
    return {
        "precision": arguments.precision,
        "batch_size": arguments.batch_size,
        "tile": _tile(arguments),
        "progress": partial(progress, "images"),
    }


def _reading_options(
    arguments: argparse.Namespace, progress: Callable[[str, int, int], None], skipped: dict[str, str]
) -> dict[str, Any]:
    """The keyword arguments of a pass over image files; unreadable files are added to `skipped` with --on-error skip."""
    return {
        **_inference_options(arguments, progress),
        "size": arguments.size,
        "skipped": skipped if arguments.on_error == "skip" else None,
    }
