"""Numbers in documents come from results/ and benchmarks/, and the kept models are what their results say."""

import json
import re
import runpy
import subprocess
import sys
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
from arcvq.tables import read_results

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = sorted((ROOT / "benchmarks").glob("*.json"))
speed_section = runpy.run_path(str(ROOT / "results" / "speed.py"))["speed_section"]
RESULTS = sorted((ROOT / "results").glob("*/*-seed*.json"))
MODELS = sorted(path.parent for path in (ROOT / "models").glob("*/config.json"))


def test_documents_say_what_the_results_say() -> None:
    checked = subprocess.run(
        [sys.executable, ROOT / "results" / "render.py", "--check"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout


def test_every_benchmark_is_in_the_page_about_speed() -> None:
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    assert BENCHMARKS
    for path in BENCHMARKS:
        assert f"\n## {path.stem}\n" in page
        assert json.loads(path.read_text(encoding="utf-8"))["device"] in page
    for target in re.findall(r"\]\(([^)#]+)\)", page):
        assert (ROOT / "docs" / target).exists(), target


def test_a_table_says_what_a_benchmark_measured(tmp_path: Path) -> None:
    head = {"date": "2026-01-02", "device": "A CPU", "threads": 2, "versions": {"torch": "2.11"}}
    size = {"task": "assign", "tokens": 2048, "codes": 1024, "width": 16, "limit_fraction": 0.25, "mebibytes": 2.0}
    rows = [
        {**size, "name": "arcvq chunked", "milliseconds": 1.25, "fastest": 1.0},
        {**size, "name": "faiss IndexFlatIP", "milliseconds": 2.5, "fastest": 1.5},
        {**size, "name": "plain", "missing": "out of memory: too much"},
        {**size, "codes": 65536, "name": "arcvq chunked", "milliseconds": 80.0, "fastest": 79.0},
    ]
    limits = {"measured": {"operations_per_second": 1.5e12, "bytes_per_second": 2e10}}
    (tmp_path / "a.json").write_text(json.dumps({**head, "limits": limits, "rows": rows}))
    precisions = [
        {"name": "fp32 plain", "agreement": 1.0, "psnr": 20.0, "psnr_difference": 0.0, "encode_images_per_second": 1234.0,
         "decode_images_per_second": 99.0, "encode_mebibytes": 5.0, "decode_mebibytes": 6.0},
        {"name": "tf32 plain", "missing": "needs an NVIDIA GPU"},
    ]  # fmt: skip
    tokens = {"suite": "tokens", "model": "tiny", "data": "sample", "images": 64, "batch_size": 32}
    (tmp_path / "b.json").write_text(json.dumps({**head, **tokens, "rows": precisions}))
    packed = {"preset": "sample/vq-vae", "way": "bf16", "batch_size": 1024}
    together = [
        {**packed, "at_a_time": 1, "mps": False, "steps_per_second": 400.0, "milliseconds": [2.5]},
        {**packed, "at_a_time": 2, "mps": True, "steps_per_second": 500.0, "milliseconds": [4.0, 4.0]},
    ]
    (tmp_path / "c.json").write_text(json.dumps({**head, "suite": "packing", "rows": together}))
    section = speed_section(tmp_path)
    assert section.startswith("## a\n\nA CPU, 2 threads, torch 2.11, 2026-01-02.\n")
    assert "Limit: 1.5 float32 TFLOP/s, 20 GB/s, measured in the same run." in section
    assert "| 2,048 | 1,024 | 16 | **1.25**, 25.0%, 2.0 | 2.5, 25.0%, 2.0 |" in section
    assert "| 2,048 | 65,536 | 16 | **80**, 25.0%, 2.0 | – |" in section
    assert "- missing: plain: out of memory: too much" in section
    assert "at 1 sizes, faiss's exact index takes from 1.50 to 1.50 times as long as `arcvq chunked`" in section
    assert "more than 1.3 times slower at 1, more than 1.3 times faster at 0." in section
    assert "| fp32 plain | 100.000% | 20.000 | +0.0000 | 1,234 | 99 | 5.0 | 6.0 |" in section
    assert "| tf32 plain | missing: needs an NVIDIA GPU |" in section
    assert "`sample/vq-vae`, bf16, batches of 1,024." in section
    assert "| 2 | yes | 500 | 1.25 × | 4.00, 4.00 |" in section


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
        (result, preset)
        for result in read_results(ROOT / "results")
        if (preset := f"{result.data}/{result.name.removesuffix(f'-{result.precision}')}") in preset_names()
    ]
    assert of_presets
    for result, preset in of_presets:
        computing = {key: result.settings["training"][key] for key in ("precision", "compile", "capture")}
        now = to_dict(load_system(preset, [f"--training.{key}={value}" for key, value in computing.items()]))
        assert those_of(result.settings, json.loads(json.dumps(now))) == result.settings, result.file


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
