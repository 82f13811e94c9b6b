"""Tokenizers in files: config.json, model.safetensors and a card. Loading executes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from arcvq.config import Choice, parse, to_dict
from arcvq.errors import ArcvqError
from arcvq.nets import AUTOENCODERS, AutoencoderConfig
from arcvq.quantizers import QUANTIZERS, QuantizerConfig
from arcvq.storage import atomic_folder, read_json, read_tensors, write_bytes, write_json, write_tensors
from arcvq.tokenizers.build import build_tokenizer
from arcvq.tokenizers.card import model_card
from arcvq.tokenizers.tokenizer import Tokenizer

FORMAT = "arcvq-tokenizer-2"
FILES = ("config.json", "model.safetensors", "README.md")
# The largest side of an image that a tokenizer may be for, and the most numbers in a buffer that its configuration determines (FSQ's
# and LFQ's codes).
LARGEST = 1 << 14
LARGEST_BUFFER = 1 << 27
# Trained tokenizers that travel inside the package, by name.
EMBEDDED = ("tiny",)


@dataclass(kw_only=True)
class SavedConfig:
    """What config.json holds: enough to build the same module again, and no code."""

    format: str
    system: str | None = None
    channels: int
    image_size: tuple[int, ...] | None = None
    autoencoder: Annotated[AutoencoderConfig, Choice(AUTOENCODERS, "small")]
    quantizer: Annotated[QuantizerConfig, Choice(QUANTIZERS, "vq")]

    def __post_init__(self) -> None:
        size = self.image_size
        if size is not None and not (len(size) == 2 and all(0 < side <= LARGEST for side in size)):
            raise ArcvqError(f"image_size: expected a height and a width from 1 to {LARGEST}, got {list(size)}")


def to_config(tokenizer: Tokenizer) -> dict[str, Any]:
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
    if data.get("format") != FORMAT:
        raise ArcvqError(
            f"not an arcvq tokenizer of this version: its format is {data.get('format')!r}, expected {FORMAT!r}"
        )
    config = parse(SavedConfig, data)
    size = None if config.image_size is None else (config.image_size[0], config.image_size[1])
    return build_tokenizer(config.channels, config.autoencoder, config.quantizer, image_size=size, system=config.system)


def save(tokenizer: Tokenizer, directory: Path, notes: Mapping[str, Any]) -> Path:
    others = sorted(path.name for path in directory.iterdir() if path.name not in FILES) if directory.is_dir() else []
    if others:
        raise ArcvqError(f"{directory}: holds other things ({others[0]}): save into a folder of its own")
    with atomic_folder(directory) as folder:
        write_json(folder / "config.json", to_config(tokenizer))
        write_tensors(folder / "model.safetensors", tokenizer.state_dict())
        write_bytes(folder / "README.md", model_card(tokenizer, dict(notes)).encode())
    return directory


def load(source: str | Path) -> Tokenizer:
    folder = locate(source)
    config, file = read_json(folder / "config.json", "a saved tokenizer"), folder / "model.safetensors"
    try:
        with torch.device("meta"):  # takes no memory, however large the configuration says that it is
            planned = from_config(config)
    except ArcvqError as error:
        raise ArcvqError(f"{folder / 'config.json'}: {error}") from None
    except (RuntimeError, OverflowError, TypeError) as error:  # what torch says to sizes that no tensor can have
        raise ArcvqError(
            f"{folder / 'config.json'}: too large to build ({' '.join(str(error).split())[:80]})"
        ) from None
    tensors = read_tensors(file, "a saved tokenizer")
    check_tensors(planned, tensors, file)
    tokenizer = from_config(config)
    tokenizer.load_state_dict(tensors)
    return tokenizer


def push(tokenizer: Tokenizer, repository: str, private: bool, notes: Mapping[str, Any]) -> str:
    import tempfile

    from huggingface_hub import HfApi

    api = HfApi()
    with tempfile.TemporaryDirectory() as folder:
        save(tokenizer, Path(folder) / "model", notes)
        api.create_repo(repository, private=private, exist_ok=True)
        return str(api.upload_folder(repo_id=repository, folder_path=Path(folder) / "model"))


def locate(source: str | Path) -> Path:
    path = Path(source)
    for candidate in (path, path / "model"):
        if (candidate / "config.json").is_file():
            return candidate
    if (path / "config.yaml").is_file() and (path / "checkpoints").is_dir():
        raise ArcvqError(
            f"{path}: its training has not ended, and there is no model yet: the same arcvq train command goes on"
        )
    if path.is_dir():
        raise ArcvqError(f"{path}: holds no tokenizer: neither config.json nor model/config.json is there")
    if path.exists():
        raise ArcvqError(f"{path}: is a file; expected the folder of a run or of a saved tokenizer")
    name = str(source)
    if name in EMBEDDED:
        return Path(str(files("arcvq.tokenizers") / "embedded" / name))
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return _download(name)
    embedded = ", ".join(EMBEDDED)
    raise ArcvqError(
        f"{name}: no such run or model: expected a folder, an embedded tokenizer ({embedded}) or a Hub id owner/name"
    )


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(snapshot_download(name, allow_patterns=["config.json", "model.safetensors"]))
    except (OSError, HFValidationError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:160]
        raise ArcvqError(f"{name}: no such folder, and it could not be had from the Hub ({reason})") from None


def check_tensors(planned: Tokenizer, tensors: Mapping[str, Tensor], file: Path) -> None:
    """Fail before a module is built if the file's tensors are not those that `planned` (on the meta device) has, or are not finite."""
    expected = planned.state_dict()
    missing, foreign = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    wrong = [name for name in expected.keys() & tensors.keys() if expected[name].shape != tensors[name].shape]
    if missing or foreign or wrong:
        parts = [
            f"{len(names)} {what} (e.g. {names[0]})"
            for what, names in (("missing", missing), ("foreign", foreign), ("of the wrong shape", sorted(wrong)))
            if names
        ]
        raise ArcvqError(f"{file}: does not fit its config.json: tensors {', '.join(parts)}")
    for name, buffer in planned.named_buffers():  # those that follow from the configuration are in no file
        if name not in expected and buffer.numel() > LARGEST_BUFFER:
            raise ArcvqError(f"{file.parent / 'config.json'}: {name} would have {buffer.numel():,} numbers: too large")
    for name, tensor in sorted(tensors.items()):
        if not tensor.isfinite().all():
            raise ArcvqError(f"{file}: {name} holds NaN or infinite numbers: the training it comes from has diverged")
