"""Read what a run left behind, and compare two runs."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from arcvq.systems import SYSTEMS, preset_names

# The tokenizers with a preset for the sample. Those for large images are trained in tests/systems, priors in tests/priors.
SAMPLE_SYSTEMS = sorted(
    name for name, system in SYSTEMS.items() if f"sample/{name}" in preset_names() and system.task != "prior"
)

# The fields of metrics.jsonl that a clock writes.
TIMING = ("samples_per_second", "seconds")
# The tensors of a checkpoint.
CHECKPOINT_FILES = ("tokenizer", "tokenizer-optimizer", "random-0")


def read_lines(run: Path) -> list[dict[str, Any]]:
    """Every line of metrics.jsonl; a torn one is an error here."""
    content = (run / "metrics.jsonl").read_text()
    assert content.endswith("\n")
    return [json.loads(line) for line in content.splitlines()]


def read_losses(run: Path) -> list[float]:
    return [line["loss"] for line in read_lines(run) if line["kind"] == "train"]


def without_timing(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key not in TIMING} for line in lines]


def last_checkpoint(run: Path) -> Path:
    return max((run / "checkpoints").glob("step-*"))


def assert_same_run(one: Path, other: Path) -> None:
    """Weights, quantizer buffers, optimizer, random numbers, history and logged lines are equal, bit for bit."""
    assert without_timing(read_lines(one)) == without_timing(read_lines(other))
    files = ["model/model.safetensors"]
    assert last_checkpoint(one).name == last_checkpoint(other).name
    checkpoint = f"checkpoints/{last_checkpoint(one).name}"
    files += [f"{checkpoint}/{name}.safetensors" for name in CHECKPOINT_FILES]
    snapshots = sorted(path.name for path in (one / "codebooks").iterdir())
    assert snapshots == sorted(path.name for path in (other / "codebooks").iterdir())
    files += [f"codebooks/{name}" for name in snapshots]
    for file in files:
        assert_same_tensors(one / file, other / file)


def assert_same_tensors(one: Path, other: Path) -> None:
    left, right = load_file(one), load_file(other)
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), f"{one.name}: {name}"


def assert_nothing_half_written(run: Path) -> None:
    assert [path for path in run.rglob("*") if path.name.startswith(".") or path.name.endswith(".tmp")] == []
