"""Presets: YAML files that fix a system, a data set and a schedule. Shipped in the package, one folder per data set."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from arcvq.config import did_you_mean, override, read_yaml
from arcvq.errors import ArcvqError
from arcvq.systems.config import RunConfig, TokenizerConfig
from arcvq.systems.parsing import config_class, parse_config, with_defaults


def preset_folder() -> Path:
    """The folder of the presets in the package."""
    return Path(str(files("arcvq") / "presets"))


@cache
def preset_names() -> tuple[str, ...]:
    """The names of the presets in the package, e.g. `cifar10/arcvq-vae`, in alphabetical order."""
    root = preset_folder()
    return tuple(sorted(path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.yaml")))


def preset_path(source: str) -> Path:
    """A preset's name, or a path to a YAML of one's own."""
    if source.endswith((".yaml", ".yml")):
        path = Path(source)
        if not path.is_file():
            raise ArcvqError(f"{source}: no such file")
        return path
    if source not in preset_names():
        raise ArcvqError(f"unknown preset {source!r}{did_you_mean(source, preset_names())}")
    return preset_folder() / f"{source}.yaml"


def preset_header(source: str) -> list[str]:
    """The comment a preset opens with: what it is, the command, what to expect."""
    lines = preset_path(source).read_text(encoding="utf-8").splitlines()
    header = []
    for line in lines:
        if not line.startswith("#"):
            break
        header.append(line.lstrip("#").strip())
    return header


def preset_title(source: str) -> str:
    """The first sentence of the header."""
    lines = preset_header(source)
    above = lines[: next((i for i, line in enumerate(lines) if line.startswith("arcvq ")), 1)]
    return re.split(r"(?<=\.) (?=[A-Z])", " ".join(above), maxsplit=1)[0]


def load_config(source: str, arguments: Sequence[str] = ()) -> RunConfig:
    """A preset or YAML, with `--key value` settings on top."""
    path = preset_path(source)
    data = read_yaml(path)
    try:
        named = override(data, arguments, TokenizerConfig)
        below = with_defaults({**data, **{key: named[key] for key in ("system", "task") if key in named}})
        wanted = with_defaults(_one_length(data, override(below, arguments, config_class(below))))
        # With another quantizer, say, a run is no longer what the file's name says.
        if wanted.get("system") == data.get("system"):
            wanted.setdefault("name", path.stem)
        return parse_config(wanted)
    except ArcvqError as error:
        raise ArcvqError(f"{source}: {error}") from None


def _one_length(preset: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """`--training.steps 100` on top of a preset that counts in epochs replaces them; so do stages replace a length."""
    before, after = preset.get("training"), wanted.get("training")
    if isinstance(before, dict) and isinstance(after, dict):
        for given, replaced in (("steps", ["epochs"]), ("epochs", ["steps"]), ("stages", ["epochs", "steps"])):
            if after.get(given) and not before.get(given):
                for name in replaced:
                    if after.get(name) == before.get(name):
                        after.pop(name, None)
    return wanted
