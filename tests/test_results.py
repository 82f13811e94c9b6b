"""The result files are complete, match their presets, and match the kept models."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from arcvq import Tokenizer
from arcvq.config import to_dict
from arcvq.metrics import PROTOCOLS, Protocol
from arcvq.quantizers import Quantizer
from arcvq.systems import load_config, parse_config, preset_names
from reproduction.results import Results, decisive_settings, first_difference, read_result, without_paths

ROOT = Path(__file__).resolve().parent.parent
RESULTS = sorted((ROOT / "results").glob("*/*-seed*.json"))
MODELS = sorted(path.parent for path in (ROOT / "models").glob("*/config.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_result_is_complete_and_config_parses(path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    assert path.stem == f"{document['name']}-seed{document['seed']}"
    assert path.parent.name == document["data"]
    for name, measured in read_result(path).sections.items():
        if name in PROTOCOLS:
            assert measured["protocol_hash"] in revisions(PROTOCOLS[name])
            assert measured["metrics"]["psnr"] > 0
        assert not set(measured["metrics"]) & set(measured["missing"])
    assert document["training"]["steps"] > 0
    assert document["training"]["device"]
    # Options that are newer than the result have their defaults.
    resolved = json.loads(json.dumps(without_paths(to_dict(parse_config(document["config"])))))
    assert restrict_keys(document["config"], resolved) == document["config"]


def test_result_of_preset_has_preset_settings() -> None:
    """Otherwise the tables would show the numbers of another recipe under the preset's name."""
    of_presets = [
        (result, f"{result.data}/{result.name}")
        for result in Results(ROOT / "results").all
        if f"{result.data}/{result.name}" in preset_names() and not result.makes_images
    ]
    assert of_presets
    for result, preset in of_presets:
        now = decisive_settings(to_dict(load_config(preset, [f"--training.precision={result.precision}"])))
        assert first_difference(result.settings, now) == "", result.path


def revisions(protocol: Protocol) -> list[str]:
    """The hashes of all revisions of a protocol."""
    return [replace(protocol, revision=number).hash for number in range(1, protocol.revision + 1)]


def restrict_keys(recorded: Any, resolved: Any) -> Any:
    """`resolved` without the keys that `recorded` does not have."""
    if not (isinstance(recorded, dict) and isinstance(resolved, dict)):
        return resolved
    return {key: restrict_keys(value, resolved[key]) for key, value in recorded.items()}


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.name)
def test_kept_model_matches_its_result(path: Path) -> None:
    data, name = path.name.split("-", 1)
    document = json.loads((ROOT / "results" / data / f"{name}.json").read_text(encoding="utf-8"))
    tokenizer = Tokenizer.from_pretrained(path)
    assert sum(p.numel() for p in tokenizer.parameters()) == document["parameters"]
    # Stacked levels are trained one after another, each with its own quantizer.
    quantizers = [module for module in tokenizer.modules() if isinstance(module, Quantizer)]
    assert sum(int(quantizer.step) for quantizer in quantizers) == document["training"]["steps"]
    images = torch.rand(2, tokenizer.channels, *tokenizer.image_size) * 2 - 1
    assert torch.equal(tokenizer.decode(tokenizer.encode(images)), tokenizer.reconstruct(images))
    norms = torch.linalg.vector_norm(tokenizer.quantizer.codebook.detach(), dim=1)
    assert float(norms.mean()) == pytest.approx(document["protocols"]["exact"]["metrics"]["norm_mean"], rel=1e-5)
