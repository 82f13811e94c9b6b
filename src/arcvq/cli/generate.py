"""The commands sample, compress and decompress."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from arcvq.cli.command import Commands, add_import_option, positive_int, print_json
from arcvq.errors import ArcvqError

# Defaults that are not in the parser, so that it shows whether an option was given.
IMAGES, CHUNK, PRECISION = 64, 64, "fp32"
# The most training images beside each generated one: nearest.png has a column for each.
MAX_NEAREST = 100


def add_sample(commands: Commands) -> None:
    """Add the command `arcvq sample`."""
    sub = commands.add(
        "sample",
        sample,
        "make images with a prior, complete an image, or continue it",
        "  arcvq sample tiny --n 16 --class sneaker --out sampled\n"
        "  arcvq sample runs/prior --image photo.png --mask mask.png --out completed",
    )
    sub.add_argument(
        "run", metavar="RUN", help="a run that trained a prior, a saved generator, or the embedded one (tiny)"
    )
    sub.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder for the PNGs; of --n images a new one"
    )
    sub.add_argument("--n", type=positive_int, metavar="N", help=f"how many images (default: {IMAGES})")
    sub.add_argument(
        "--class",
        dest="classes",
        nargs="+",
        metavar="CLASS",
        help="names or numbers of classes, taken in turn (default: all in turn)",
    )
    sub.add_argument(
        "--seed", type=int, default=0, metavar="N", help="image i of a seed is the same whatever --n is (default: 0)"
    )
    add_sampling_options(sub)
    sub.add_argument(
        "--image", type=Path, metavar="FILE", help="an image to complete (--mask) or to continue (--extend)"
    )
    sub.add_argument(
        "--mask", type=Path, metavar="FILE", help="an image that is white where --image is to be filled in"
    )
    sub.add_argument("--extend", type=positive_int, metavar="ROWS", help="rows of tokens to add below --image")
    sub.add_argument(
        "--nearest",
        type=_nearest_count,
        metavar="K",
        help=f"also find the K (1 to {MAX_NEAREST}) training images nearest to each image: nearest.png and nearest.json",
    )
    sub.add_argument(
        "--data", metavar="NAME", help="data set whose training images --nearest searches (default: the run's)"
    )
    sub.add_argument("--root", metavar="DIR", help="folder of the data sets, for --nearest")
    sub.add_argument("--device", metavar="NAME", help="default: cuda if there is one, else cpu")
    sub.add_argument("--json", action="store_true", help="print as JSON")
    add_import_option(sub)


def sample(arguments: argparse.Namespace) -> int:
    """Write generated, completed or continued images as PNGs."""
    from arcvq.priors import Generator
    from arcvq.priors.files import complete_file, sample_files
    from arcvq.progress import progress_bar
    from arcvq.systems import load_image_sets, write_nearest
    from arcvq.terminal import print_nearest
    from arcvq.tokenizers.inference import check_precision, choose_device

    if arguments.image is None and (arguments.mask is not None or arguments.extend is not None):
        raise ArcvqError("--mask and --extend are for an image: name it with --image")
    for name in ("n", "precision", "chunk", "nearest"):
        if arguments.image is not None and getattr(arguments, name) is not None:
            raise ArcvqError(f"--{name} is for new images: leave it out with --image")
    for name in ("data", "root"):
        if arguments.nearest is None and getattr(arguments, name) is not None:
            raise ArcvqError(f"--{name} is for --nearest K: give both")
    device = choose_device(arguments.device)
    check_precision(arguments.precision or PRECISION, device)
    generator = Generator.from_pretrained(arguments.run, device=device)
    if arguments.compile:
        generator.speed_up()
    sets, nearest = None, None
    if arguments.nearest is not None:  # loaded before the sampling, so that a wrong name is reported first
        sets = load_image_sets(
            generator, arguments.run, at_least=arguments.nearest, data=arguments.data, root=arguments.root
        )
    with progress_bar("sampling") as progress:
        about: dict[str, Any] = {
            "classes": arguments.classes,
            "seed": arguments.seed,
            "progress": lambda done, total: progress("steps", done, total),
            **sampling_options(arguments),
        }
        if arguments.image is not None:
            path = complete_file(generator, arguments.image, arguments.mask, arguments.extend, arguments.out, **about)
            print_json({"file": str(path)}) if arguments.json else print(path)
            return 0
        about |= batch_options(arguments)
        written = sample_files(generator, arguments.out, arguments.n or IMAGES, **about)
    if sets is not None:
        with progress_bar("comparing") as progress:
            nearest = write_nearest(generator, written.files, sets, arguments.nearest, arguments.out, progress=progress)
    if arguments.json:
        document: dict[str, Any] = {"grid": str(written.grid), "files": [str(path) for path in written.files]}
        if nearest is not None:
            about = {name: value for name, value in nearest.items() if name not in ("images", "test_distances")}
            document["nearest"] = {"file": str(arguments.out / "nearest.json"), **about}
        print_json(document)
        return 0
    print(f"{written.grid}: the first images; all {len(written.files)} are in {arguments.out}")
    if nearest is not None:
        print_nearest(nearest, arguments.out / "nearest.png")
    return 0


def _nearest_count(text: str) -> int:
    """An argument type: a whole number from 1 to MAX_NEAREST."""
    value = positive_int(text)
    if value > MAX_NEAREST:
        raise argparse.ArgumentTypeError(f"expected at most {MAX_NEAREST}, got {value}")
    return value


def add_sampling_options(sub: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the options that change how a prior draws."""
    sub.add_argument(
        "--guidance", type=float, metavar="W", help="how strongly the class is followed (default: 1, no guidance)"
    )
    sub.add_argument("--temperature", type=float, metavar="T", help="below 1: likelier tokens (default: 1)")
    sub.add_argument("--top-k", type=positive_int, metavar="K", help="only the K likeliest tokens")
    sub.add_argument(
        "--top-p", type=float, metavar="P", help="only the likeliest tokens that together have probability P"
    )
    sub.add_argument("--steps", type=positive_int, metavar="N", help="sampling steps of maskgit and ldm")
    sub.add_argument("--order", choices=("confidence", "halton"), help="in which maskgit fills in tokens")
    sub.add_argument(
        "--precision", metavar="NAME", help=f"of prior and decoder: {PRECISION} (default), tf32, fp16 or bf16"
    )
    sub.add_argument("--compile", action="store_true", help="compile prior and decoder: faster for many images")
    sub.add_argument("--eta", type=float, metavar="ETA", help="noise on the way in ldm: 0 none (DDIM), 1 as in DDPM")
    sub.add_argument(
        "--chunk",
        type=positive_int,
        metavar="N",
        help=f"images made together; changes their last bits (default: {CHUNK})",
    )


def sampling_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The sampling options that were given, without the chunk."""
    names = ("guidance", "temperature", "top_k", "top_p", "steps", "order", "eta")
    return {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}


def batch_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """In what precision and how many at a time new images are made."""
    return {"chunk": arguments.chunk or CHUNK, "precision": arguments.precision or PRECISION}


def add_compress(commands: Commands) -> None:
    """Add the command `arcvq compress`."""
    sub = commands.add(
        "compress",
        compress,
        "turn a picture into a small file of entropy-coded tokens",
        "  arcvq compress tiny photo.png --out photo.arcvq",
    )
    _add_compression_arguments(sub, "an image file of any size", "the file to write, NAME.arcvq")
    sub.add_argument(
        "--mode",
        default="portable",
        metavar="NAME",
        help="portable (default): decodes on any machine; prior: smaller, and decodes where the same versions of the same "
        "libraries compute the same numbers",
    )
    sub.add_argument(
        "--class", dest="label", metavar="CLASS", help="name or number of the picture's class, for --mode prior"
    )


def compress(arguments: argparse.Namespace) -> int:
    """Run `arcvq compress`: write one file and print its size."""
    from arcvq.data import to_unit
    from arcvq.data.files import read_image
    from arcvq.priors import Generator
    from arcvq.priors.compression import check_mode
    from arcvq.priors.compression import compress as compress_picture
    from arcvq.progress import progress_bar
    from arcvq.storage import check_other_file, check_writable_file, write_bytes

    check_writable_file(arguments.out)
    check_other_file(arguments.out, arguments.file)
    generator = Generator.from_pretrained(arguments.run)
    check_mode(generator, arguments.mode)
    label = None if arguments.label is None else generator.class_numbers(arguments.label)[0]
    pixels = read_image(arguments.file, generator.tokenizer.channels)
    with progress_bar("compressing") as progress:
        found = compress_picture(
            generator,
            to_unit(pixels),
            mode=arguments.mode,
            label=label,
            progress=lambda done, total: progress("tokens", done, total),
        )
    write_bytes(arguments.out, found.content)
    count = pixels.shape[1] * pixels.shape[2]
    sizes = {"bytes": len(found.content), "bits_per_pixel": 8 * len(found.content) / count}
    sizes["payload_bits_per_pixel"] = found.payload_bits / count
    if found.cross_entropy_bits is not None:
        sizes["cross_entropy_bits_per_pixel"] = found.cross_entropy_bits / count
    if arguments.json:
        print_json({"file": str(arguments.out), **sizes})
    else:
        print(f"{arguments.out}: {sizes['bytes']:,} bytes, {sizes['bits_per_pixel']:.4f} bits per pixel")
    return 0


def add_decompress(commands: Commands) -> None:
    """Add the command `arcvq decompress`."""
    sub = commands.add(
        "decompress",
        decompress,
        "turn a compressed file into a picture",
        "  arcvq decompress tiny photo.arcvq --out photo.png",
    )
    _add_compression_arguments(sub, "a file that arcvq compress wrote", "the image to write, NAME.png")


def decompress(arguments: argparse.Namespace) -> int:
    """Run `arcvq decompress`: write one PNG."""
    from arcvq.data import to_uint8, write_png
    from arcvq.priors import Generator
    from arcvq.priors.compression import decompress as decompress_picture
    from arcvq.progress import progress_bar
    from arcvq.storage import check_other_file, check_writable_file

    if arguments.out.suffix.lower() != ".png":
        raise ArcvqError(f"{arguments.out}: a PNG is written: expected a name that ends in .png")
    check_writable_file(arguments.out)
    check_other_file(arguments.out, arguments.file)
    if not arguments.file.is_file():
        raise ArcvqError(f"{arguments.file}: no such file")
    generator = Generator.from_pretrained(arguments.run)
    with progress_bar("decompressing") as progress:
        try:
            picture = decompress_picture(
                generator, arguments.file.read_bytes(), lambda done, total: progress("tokens", done, total)
            )
        except ArcvqError as error:
            raise ArcvqError(f"{arguments.file}: {error}") from None
    write_png(arguments.out, to_uint8(picture))
    print_json({"file": str(arguments.out)}) if arguments.json else print(arguments.out)
    return 0


def _add_compression_arguments(sub: argparse.ArgumentParser, file: str, out: str) -> None:
    """Add the arguments that compress and decompress share."""
    sub.add_argument(
        "run", metavar="RUN", help="a run that trained a prior, a saved generator, or the embedded one (tiny)"
    )
    sub.add_argument("file", type=Path, metavar="FILE", help=file)
    sub.add_argument("-o", "--out", type=Path, required=True, metavar="FILE", help=out)
    sub.add_argument("--json", action="store_true", help="print as JSON")
    add_import_option(sub)
