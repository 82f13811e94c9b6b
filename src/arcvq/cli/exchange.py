"""The commands import and export."""

from __future__ import annotations

import argparse
from pathlib import Path

from arcvq.cli.command import Commands, add_import_option, model_name, print_json
from arcvq.errors import ArcvqError


def add_import(commands: Commands) -> None:
    """Add the command `arcvq import`."""
    sub = commands.add(
        "import",
        import_checkpoint,
        "make a tokenizer of another project's checkpoint",
        "  arcvq import vqgan.ckpt --config vqgan.yaml --out vqgan\n  arcvq import VQMODEL_FOLDER --out tokenizer",
    )
    sub.add_argument(
        "source",
        type=Path,
        metavar="FILE_OR_FOLDER",
        help="a file of taming-transformers, ArcVQ-VAE or CVQ-VAE, or the folder of a diffusers VQModel",
    )
    sub.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the tokenizer")
    sub.add_argument("--config", type=Path, metavar="YAML", help="the configuration of a taming-transformers file")
    sub.add_argument(
        "--metric", choices=("euclidean", "cosine"), help="how codes are chosen, where the files do not say it"
    )
    sub.add_argument("--json", action="store_true", help="print as JSON")


def import_checkpoint(arguments: argparse.Namespace) -> int:
    """Save another project's checkpoint as a tokenizer."""
    from arcvq.tokenizers.foreign import import_tokenizer

    _check_new_folder(arguments.out)
    imported = import_tokenizer(arguments.source, arguments.config, arguments.metric)
    tokenizer, config = imported.tokenizer, imported.tokenizer.quantizer.config
    tokenizer.save_pretrained(arguments.out, notes={"imported from": f"{arguments.source.name}, a {imported.origin}"})
    if arguments.json:
        facts = {"origin": imported.origin, "codes": config.codebook_size, "metric": imported.metric}
        print_json({"folder": str(arguments.out), **facts, "downsampling": tokenizer.downsampling})
    else:
        codes = f"{config.codebook_size} codes of width {tokenizer.quantizer.dim}, chosen by {imported.metric}"
        print(f"{arguments.out}: a {imported.origin}, {tokenizer.downsampling}× down, {codes}")
    return 0


def add_export(commands: Commands) -> None:
    """Add the command `arcvq export`."""
    sub = commands.add(
        "export",
        export,
        "write a tokenizer for diffusers, as ONNX files, or in half precision",
        "  arcvq export tiny --format onnx --out tiny-onnx\n  arcvq export RUN --format diffusers --out vqmodel\n"
        "  arcvq export RUN --format fp16 --out half",
    )
    sub.add_argument("run", metavar="RUN", help="a run, a saved tokenizer, or an embedded one (tiny)")
    sub.add_argument(
        "--format",
        choices=("diffusers", "onnx", "fp16", "bf16"),
        required=True,
        help="a VQModel's folder, two ONNX files, or a tokenizer of arcvq with its weights in half precision",
    )
    sub.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the files")
    sub.add_argument(
        "--decoder-only",
        action="store_true",
        help="for diffusers: write a tokenizer that decodes there, though it would encode to other tokens",
    )
    sub.add_argument("--json", action="store_true", help="print as JSON")
    add_import_option(sub)


def export(arguments: argparse.Namespace) -> int:
    """Write a tokenizer in the format of another library."""
    _check_new_folder(arguments.out)
    if arguments.decoder_only and arguments.format != "diffusers":
        raise ArcvqError("--decoder-only is for --format diffusers: the other formats encode")
    exports = {"diffusers": _export_diffusers, "onnx": _export_onnx, "fp16": _export_half, "bf16": _export_half}
    return exports[arguments.format](arguments)


def _export_diffusers(arguments: argparse.Namespace) -> int:
    from arcvq.tokenizers import Tokenizer
    from arcvq.tokenizers.foreign.diffusers_export import export_diffusers

    same_tokens = export_diffusers(Tokenizer.from_pretrained(arguments.run), arguments.out, arguments.decoder_only)
    if arguments.json:
        print_json({"folder": str(arguments.out), "format": "diffusers", "encodes_to_same_tokens": same_tokens})
    else:
        note = "" if same_tokens else "; for decoding: VQModel would encode to other tokens (see its README.md)"
        print(f"{arguments.out}: a VQModel of diffusers{note}")
    return 0


def _export_onnx(arguments: argparse.Namespace) -> int:
    from arcvq.tokenizers import Tokenizer
    from arcvq.tokenizers.foreign.onnx_export import check_packages, export_onnx

    check_packages()
    result = export_onnx(Tokenizer.from_pretrained(arguments.run), arguments.out)
    if arguments.json:
        numbers = {"same_tokens": result.same_tokens, "pixel_difference": result.pixel_difference}
        print_json({"folder": str(arguments.out), "format": "onnx", **numbers})
    else:
        print(
            f"{arguments.out}: encoder.onnx and decoder.onnx; on random images {result.same_tokens:.2%} of the tokens are the "
            f"same, and pixels differ by {result.pixel_difference:.1e} at most"
        )
    return 0


def _export_half(arguments: argparse.Namespace) -> int:
    import torch

    from arcvq.tokenizers import Tokenizer

    dtype = torch.float16 if arguments.format == "fp16" else torch.bfloat16
    notes = {"exported from": model_name(arguments.run)}
    folder = Tokenizer.from_pretrained(arguments.run).save_pretrained(arguments.out, notes=notes, dtype=dtype)
    size = (folder / "model.safetensors").stat().st_size
    if arguments.json:
        print_json({"folder": str(arguments.out), "format": arguments.format, "bytes": size})
    else:
        print(f"{arguments.out}: a tokenizer with its weights as {arguments.format}, {size / 2**20:.1f} MiB")
    return 0


def _check_new_folder(folder: Path) -> None:
    """Raise before the work unless this folder is new and can be written to."""
    from arcvq.storage import check_writable_folder

    if folder.exists():
        raise ArcvqError(f"{folder}: exists: give a new folder")
    check_writable_folder(folder)
