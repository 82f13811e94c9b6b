"""A dry run says what a training would take, and writes nothing."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from arcvq.cli import main
from arcvq.data import write_png
from arcvq.data.source import Batch
from arcvq.systems import TokenizerConfig, dry_run
from arcvq.training import Trainer

MakeConfig = Callable[..., TokenizerConfig]


def test_a_dry_run_measures_a_few_real_steps(tiny_system: MakeConfig) -> None:
    config = tiny_system(changes={"training.steps": None, "training.epochs": 25, "data.limit": 50})
    result = dry_run(config)
    tokenizer = config.build_tokenizer(1, (28, 28), 100)
    assert result.parameters == {"tokenizer": sum(parameter.numel() for parameter in tokenizer.parameters())}
    assert result.facts == {"tokens": "49 per image"}
    assert result.steps == 25 * 4
    assert 0 < result.seconds_per_step < 5
    assert result.seconds == pytest.approx(result.seconds_per_step * 100)
    assert 10 * 2**20 < result.memory_bytes < 2**40
    assert "CPU" in result.device


def test_small_last_batch_is_not_the_typical_step(tiny_system: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that only a step advances: by a second for each image."""
    now = 0.0

    def step(trainer: Trainer, batch: Batch) -> None:
        nonlocal now
        now += len(batch["index"])
        trainer.position.step += 1

    monkeypatch.setattr(Trainer, "step", step)
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    # Epochs of a whole batch and one of two images.
    assert dry_run(tiny_system(changes={"training.steps": 40, "data.limit": 18})).seconds_per_step == 16
    assert dry_run(tiny_system(changes={"training.steps": 2, "data.limit": 18})).seconds_per_step == 16


def test_a_dry_run_of_fewer_steps_than_it_measures_and_with_every_option_works(tiny_system: MakeConfig) -> None:
    changes = {
        "training.steps": None,
        "training.stages": "[{train: [autoencoder.encoder], steps: 1}, {steps: 1}]",
        "quantizer.init": "kmeans",
        "quantizer.heads": 2,
    }
    result = dry_run(tiny_system(changes=changes))
    assert (result.steps, result.facts) == (2, {"tokens": "98 per image"})


def test_a_dry_run_writes_nothing(tiny_system: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    dry_run(tiny_system())
    assert [path for path in tmp_path.rglob("*") if path.parent != tmp_path] == []


def test_a_dry_run_leaves_index_and_pixel_variance_for_the_training(
    tmp_path: Path, tiny_system: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that of several processes none has to read the whole set at its start."""
    monkeypatch.setenv("ARCVQ_CACHE", str(tmp_path / "cache"))
    for index in range(20):
        write_png(tmp_path / "photos" / f"{index}.png", torch.full((1, 28, 28), 10 * index, dtype=torch.uint8))
    assert main(["shard", str(tmp_path / "photos"), "--out", str(tmp_path / "shards"), "--size", "28"]) == 0
    (tmp_path / "shards" / "index.safetensors").unlink(missing_ok=True)
    dry_run(
        tiny_system(
            changes={
                "data.name": f"shards:{tmp_path / 'shards'}",
                "data.batch_size": 8,
                "data.limit": None,
                "data.memory": 0,
            }
        )
    )
    assert (tmp_path / "shards" / "index.safetensors").is_file()
    assert len(list((tmp_path / "cache" / "variance").glob("*.json"))) == 1
