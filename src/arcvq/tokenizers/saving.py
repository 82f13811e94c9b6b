"""Saves and loads tokenizers: config.json, model.safetensors and a model card. Loading runs no code from the files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from arcvq.config import Choice, changed_settings, parse_json, to_dict
from arcvq.errors import ArcvqError
from arcvq.nets import AUTOENCODERS, AutoencoderConfig
from arcvq.quantizers import QUANTIZERS, QuantizerConfig
from arcvq.storage import atomic_folder, read_json, read_tensors, write_bytes, write_json, write_tensors
from arcvq.tokenizers.build import build_tokenizer
from arcvq.tokenizers.card import model_card
from arcvq.tokenizers.locations import find_tokenizer_folder, upload
from arcvq.tokenizers.token_shards import tokenizer_fingerprint
from arcvq.tokenizers.tokenizer import Tokenizer

FORMAT = "arcvq-tokenizer-2"
FILES = ("config.json", "model.safetensors", "README.md")
# What weights may be stored as to save space.
HALF = (torch.float16, torch.bfloat16)
# Limits for untrusted configurations: the side of an image, and the size of a buffer that is not in the file (the codes of FSQ and LFQ).
MAX_IMAGE_SIDE = 1 << 14
MAX_BUFFER_SIZE = 1 << 27


@dataclass(kw_only=True)
class SavedConfig:
    """The content of config.json: what is needed to build the same tokenizer."""

    format: str
    system: str | None = None
    channels: int
    image_size: tuple[int, ...] | None = None
    autoencoder: Annotated[AutoencoderConfig, Choice(AUTOENCODERS, "small")]
    quantizer: Annotated[QuantizerConfig, Choice(QUANTIZERS, "vq")]

    def __post_init__(self) -> None:
        size = self.image_size
        if size is not None and not (len(size) == 2 and all(0 < side <= MAX_IMAGE_SIDE for side in size)):
            raise ArcvqError(f"image_size: expected a height and a width from 1 to {MAX_IMAGE_SIDE}, got {list(size)}")


def to_config(tokenizer: Tokenizer) -> dict[str, Any]:
    """The content of a tokenizer's config.json."""
    AUTOENCODERS.check_class(tokenizer.autoencoder)
    QUANTIZERS.check_class(tokenizer.quantizer)
    return to_dict(
        SavedConfig(
            format=FORMAT,
            system=tokenizer.system,
            channels=tokenizer.channels,
            image_size=tokenizer.image_size,
            autoencoder=tokenizer.autoencoder.config,
            quantizer=tokenizer.quantizer.config,
        )
    )


def from_config(data: Mapping[str, Any]) -> Tokenizer:
    """Build an untrained tokenizer from the content of a config.json."""
    if data.get("format") != FORMAT:
        raise ArcvqError(
            f"not an arcvq tokenizer of this version: its format is {data.get('format')!r}, expected {FORMAT!r}"
        )
    config = parse_json(SavedConfig, data)
    size = None if config.image_size is None else (config.image_size[0], config.image_size[1])
    tokenizer = build_tokenizer(
        config.channels, config.autoencoder, config.quantizer, image_size=size, system=config.system
    )
    if size is not None:
        tokenizer.check_size(*size)
    return tokenizer


def model_fingerprint(tokenizer: Tokenizer) -> str:
    """A hash of all that a tokenizer's images and tokens depend on, its weights and its configuration, 16 hex digits."""
    settings = [changed_settings(config) for config in (tokenizer.autoencoder.config, tokenizer.quantizer.config)]
    about = [tokenizer_fingerprint(tokenizer), tokenizer.channels, tokenizer.image_size, *settings]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]


def save(tokenizer: Tokenizer, directory: Path, notes: Mapping[str, Any], dtype: torch.dtype | None = None) -> Path:
    """Write a tokenizer and its model card to a folder, atomically. Replaces a saved tokenizer, but no other files.

    With `dtype`, one of HALF, floating-point tensors are stored as such.
    """
    tensors: Mapping[str, Tensor] = tokenizer.state_dict()
    if dtype is not None:
        tensors, name = to_half(tensors, dtype), str(dtype).removeprefix("torch.")
        notes = {**notes, "weights": f"stored in half precision ({name}), loaded as float32"}
    others = sorted(path.name for path in directory.iterdir() if path.name not in FILES) if directory.is_dir() else []
    if others:
        raise ArcvqError(f"{directory}: has other files ({others[0]}): save to a new folder")
    with atomic_folder(directory) as folder:
        write_json(folder / "config.json", to_config(tokenizer))
        write_tensors(folder / "model.safetensors", tensors)
        write_bytes(folder / "README.md", model_card(tokenizer, notes).encode())
    return directory


def to_half(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The tensors with floating-point ones rounded to `dtype`; an error if one has values beyond it."""
    if dtype not in HALF:
        raise ArcvqError(f"dtype is {dtype}; weights are stored as torch.float16 or torch.bfloat16, or as they are")
    rounded = {name: each.to(dtype) if each.is_floating_point() else each for name, each in tensors.items()}
    for name, tensor in tensors.items():
        if (tensor.isfinite() & ~rounded[name].isfinite()).any():
            largest, hint = torch.finfo(dtype).max, ": store bfloat16" if dtype == torch.float16 else ""
            raise ArcvqError(f"{name} has values above {largest:,.0f}, the largest that {dtype} holds{hint}")
    return rounded


def load(source: str | Path) -> Tokenizer:
    """Load a tokenizer from a folder, a run, an embedded name or a Hub id, after checking its configuration and tensors."""
    folder = find_tokenizer_folder(source)
    config, file = read_json(folder / "config.json", "a saved tokenizer"), folder / "model.safetensors"
    try:
        with torch.device("meta"):  # takes no memory, whatever sizes the configuration has
            template = from_config(config)
    except ArcvqError as error:
        raise ArcvqError(f"{folder / 'config.json'}: {error}") from None
    except (RuntimeError, OverflowError, TypeError) as error:  # torch's errors for impossible sizes
        raise ArcvqError(
            f"{folder / 'config.json'}: too large to build ({' '.join(str(error).split())[:80]})"
        ) from None
    tensors = read_tensors(file, "a saved tokenizer")
    check_tensors(template, tensors, file)
    tokenizer = from_config(config)
    tokenizer.load_state_dict(tensors)
    return tokenizer


def push(
    tokenizer: Tokenizer, repository: str, private: bool, notes: Mapping[str, Any], dtype: torch.dtype | None = None
) -> str:
    """Upload a tokenizer to a Hub repository; returns its address. `dtype` as in `save`."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return upload(save(tokenizer, Path(folder) / "model", notes, dtype), repository, private)


def check_tensors(template: nn.Module, tensors: Mapping[str, Tensor], file: Path) -> None:
    """Raise before a model is built if the file's tensors do not match `template` (on the meta device) or are not finite."""
    expected = template.state_dict()
    missing, unexpected = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    wrong = [name for name in expected.keys() & tensors.keys() if expected[name].shape != tensors[name].shape]
    if missing or unexpected or wrong:
        parts = [
            f"{len(names)} {what} (e.g. {names[0]})"
            for what, names in (("missing", missing), ("unexpected", unexpected), ("of the wrong shape", sorted(wrong)))
            if names
        ]
        raise ArcvqError(f"{file}: does not match its config.json: tensors {', '.join(parts)}")
    for name, buffer in template.named_buffers():  # buffers that the configuration determines are not in the file
        if name not in expected and buffer.numel() > MAX_BUFFER_SIZE:
            raise ArcvqError(f"{file.parent / 'config.json'}: {name} would have {buffer.numel():,} numbers: too large")
    for name, tensor in sorted(tensors.items()):
        if not tensor.isfinite().all():
            raise ArcvqError(f"{file}: {name} has NaN or infinite values: its training has diverged")
