"""Numbers in documents come from results/, and the kept models are what their results say."""

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
from arcvq.systems import load_system, parse_system, preset_names
from reproduction.results import Results, decisive, difference

ROOT = Path(__file__).resolve().parent.parent
RESULTS = sorted((ROOT / "results").glob("*/*-seed*.json"))
MODELS = sorted(path.parent for path in (ROOT / "models").glob("*/config.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_result_carries_all_that_led_to_it(path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    assert path.stem == f"{document['name']}-seed{document['seed']}"
    assert path.parent.name == document["data"]
    for name, measured in document["protocols"].items():
        assert measured["protocol_hash"] in revisions(PROTOCOLS[name])
        assert measured["metrics"]["psnr"] > 0
        assert not set(measured["metrics"]) & set(measured["missing"])
    assert document["training"]["steps"] > 0
    assert document["training"]["device"]
    # The resolved configuration still describes the same system; options that came later have their defaults.
    resolved = json.loads(json.dumps(to_dict(parse_system(document["config"]))))
    assert those_of(document["config"], resolved) == document["config"]


def test_a_result_under_a_preset_s_name_was_trained_as_the_preset_is() -> None:
    """Another recipe under an old name would be shown with the old one's numbers."""
    of_presets = [
        (result, f"{result.data}/{result.name}")
        for result in Results(ROOT / "results").all
        if f"{result.data}/{result.name}" in preset_names()
    ]
    assert of_presets
    for result, preset in of_presets:
        now = decisive(to_dict(load_system(preset, [f"--training.precision={result.precision}"])))
        assert difference(result.settings, now) == "", result.path


def revisions(protocol: Protocol) -> list[str]:
    """Today's hash, and those of its earlier revisions, which the tables mark."""
    return [replace(protocol, revision=number).hash for number in range(1, protocol.revision + 1)]


def those_of(recorded: Any, resolved: Any) -> Any:
    """`resolved` without the keys that `recorded` does not have."""
    if not (isinstance(recorded, dict) and isinstance(resolved, dict)):
        return resolved
    return {key: those_of(value, resolved[key]) for key, value in recorded.items()}


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.name)
def test_a_kept_model_has_a_result_and_works(path: Path) -> None:
    data, name = path.name.split("-", 1)
    document = json.loads((ROOT / "results" / data / f"{name}.json").read_text(encoding="utf-8"))
    tokenizer = Tokenizer.from_pretrained(path)
    assert sum(p.numel() for p in tokenizer.parameters()) == document["parameters"]
    # A hierarchy's layers are trained one after another, each with a quantizer of its own.
    quantizers = [module for module in tokenizer.modules() if isinstance(module, Quantizer)]
    assert sum(int(quantizer.step) for quantizer in quantizers) == document["training"]["steps"]
    images = torch.rand(2, tokenizer.channels, *tokenizer.image_size) * 2 - 1
    assert torch.equal(tokenizer.decode(tokenizer.encode(images)), tokenizer.reconstruct(images))
    norms = torch.linalg.vector_norm(tokenizer.quantizer.codebook.detach(), dim=1)
    assert float(norms.mean()) == pytest.approx(document["protocols"]["exact"]["metrics"]["norm_mean"], rel=1e-5)
