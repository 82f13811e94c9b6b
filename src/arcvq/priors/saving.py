"""Saves and loads generators: config.json, model.safetensors and the folder tokenizer/. Loading runs no code from the files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch

from arcvq.config import Choice, changed_settings, parse_json, to_dict
from arcvq.errors import ArcvqError
from arcvq.priors.generator import Generator
from arcvq.priors.prior import Grid, Prior, PriorConfig
from arcvq.priors.registry import PRIORS
from arcvq.storage import atomic_folder, read_json, read_tensors, write_bytes, write_json, write_tensors
from arcvq.tokenizers import saving as tokenizer_saving
from arcvq.tokenizers.card import note_rows
from arcvq.tokenizers.locations import TOKENIZER, find_model_folder, upload
from arcvq.tokenizers.token_shards import tokenizer_fingerprint

FORMAT = "arcvq-generator-1"
FILES = ("config.json", "model.safetensors", "README.md", TOKENIZER)
WHAT = "a saved generator"


@dataclass(kw_only=True)
class SavedConfig:
    """The content of config.json: what is needed to build the same prior.

    tokenizer  a hash of the tokenizer's weights and configuration
    """

    format: str
    system: str | None = None
    tokenizer: str
    class_names: list[str] | None = None
    grid: Grid
    prior: Annotated[PriorConfig, Choice(PRIORS, "gpt")]

    def __post_init__(self) -> None:
        if self.class_names is not None and len(self.class_names) != self.grid.classes:
            raise ArcvqError(f"class_names: expected {self.grid.classes} names, got {len(self.class_names)}")


def save(generator: Generator, directory: Path, notes: Mapping[str, Any]) -> Path:
    """Write a generator and its model card to a folder, atomically. Replaces a saved generator, but no other files."""
    PRIORS.check_class(generator.prior)
    others = sorted(path.name for path in directory.iterdir() if path.name not in FILES) if directory.is_dir() else []
    if others:
        raise ArcvqError(f"{directory}: has other files ({others[0]}): save to a new folder")
    config = SavedConfig(
        format=FORMAT,
        system=generator.system,
        tokenizer=tokenizer_saving.model_fingerprint(generator.tokenizer),
        class_names=generator.class_names,
        grid=generator.prior.grid,
        prior=generator.prior.config,
    )
    with atomic_folder(directory) as folder:
        tokenizer_saving.save(generator.tokenizer, folder / TOKENIZER, {})
        write_json(folder / "config.json", to_dict(config))
        write_tensors(folder / "model.safetensors", generator.prior.state_dict())
        write_bytes(folder / "README.md", model_card(generator, notes).encode())
    return directory


def load(source: str | Path) -> Generator:
    """Load a generator from a folder, a run, an embedded name or a Hub id, after checking its configuration and tensors."""
    folder = find_folder(source)
    file, config_file = folder / "model.safetensors", folder / "config.json"
    data = read_json(config_file, WHAT)
    if data.get("format") != FORMAT:
        raise ArcvqError(
            f"{config_file}: not {WHAT} of this version: its format is {data.get('format')!r}, not {FORMAT!r}"
        )
    try:
        config = parse_json(SavedConfig, data)
        with torch.device("meta"):  # takes no memory, whatever sizes the configuration has
            template: Prior = PRIORS.build(config.prior, config.grid)
    except ArcvqError as error:
        raise ArcvqError(f"{config_file}: {error}") from None
    except (RuntimeError, OverflowError, TypeError) as error:  # torch's errors for impossible sizes
        raise ArcvqError(f"{config_file}: too large to build ({' '.join(str(error).split())[:80]})") from None
    tensors = read_tensors(file, WHAT)
    tokenizer_saving.check_tensors(template, tensors, file)
    tokenizer = tokenizer_saving.load(folder / TOKENIZER)
    if tokenizer_saving.model_fingerprint(tokenizer) != config.tokenizer:
        raise ArcvqError(f"{folder / 'tokenizer'}: is another tokenizer than the one that the prior was trained on")
    prior: Prior = PRIORS.build(config.prior, config.grid)
    prior.load_state_dict(tensors)
    return Generator(prior, tokenizer, class_names=config.class_names, system=config.system)


def generator_fingerprint(generator: Generator) -> int:
    """A hash of the weights and configurations of the prior and its tokenizer, 64 bits."""
    prior = generator.prior
    about = [
        tokenizer_saving.model_fingerprint(generator.tokenizer),
        tokenizer_fingerprint(prior),
        to_dict(prior.grid),
        changed_settings(prior.config),
    ]
    return int(hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16], 16)


def find_folder(source: str | Path) -> Path:
    """The folder of a saved generator: of a run, an embedded one, or a Hub repository, which is downloaded."""
    folder = find_model_folder(source)
    if not (folder / TOKENIZER / "config.json").is_file():
        raise ArcvqError(
            f"{source}: holds no prior: expected a run of `arcvq train PRESET --tokenizer RUN`, or its model"
        )
    return folder


def push(generator: Generator, repository: str, private: bool, notes: Mapping[str, Any]) -> str:
    """Upload a generator to a Hub repository; returns its address."""
    import tempfile

    with tempfile.TemporaryDirectory() as temporary:
        folder = save(generator, Path(temporary) / "model", notes)
        return upload(folder, repository, private)


def model_card(generator: Generator, notes: Mapping[str, Any]) -> str:
    """The model card in Markdown with the Hub's header."""
    grid = generator.prior.grid
    rows: dict[str, Any] = {
        "system": generator.system or "not recorded",
        "tokenizer": generator.tokenizer.system or "not recorded",
        "tokens per image": grid.positions * grid.depth,
        "codes": grid.codebook_size,
        "classes": grid.classes or "none",
        **generator.prior.describe(),
        **note_rows(notes),
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    return f"""---
library_name: arcvq
tags: [image-generation, vector-quantization, arcvq]
---
# {generator.system or "arcvq"} generator

A prior and its tokenizer: makes images, float tensors (n, {generator.tokenizer.channels}, H, W) in [-1, 1].

```python
from arcvq import Generator

generator = Generator.from_pretrained("PATH_OR_HUB_ID")
images = generator(16, seed=0)
```

| | |
|---|---|
{table}
"""
