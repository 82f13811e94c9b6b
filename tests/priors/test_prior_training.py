"""Priors are trained by the same loop as tokenizers: resume, averages, capture, processes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from prior_runs import PRIOR_SYSTEMS, SMALLER, tiny_prior
from safetensors.torch import load_file

from arcvq import ArcvqError, Generator, Tokenizer
from arcvq.config import to_dict
from arcvq.data import to_unit
from arcvq.data.value_source import ValueSource
from arcvq.errors import Stopped
from arcvq.nets import SmallConfig
from arcvq.priors.prior import whole_frequencies
from arcvq.quantizers import VQConfig
from arcvq.systems import PriorRunConfig, dry_run, load_config, make_trainer, parse_config, preset_names, train
from arcvq.systems.config import DataConfig
from arcvq.tasks.prior import PriorTask
from arcvq.tokenizers import build_tokenizer
from arcvq.tokenizers.token_shards import tokenizer_fingerprint


def lines_of(run: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def test_every_prior_with_a_preset_has_a_tiny_training() -> None:
    assert sorted(SMALLER) == PRIOR_SYSTEMS


@pytest.mark.parametrize("name", PRIOR_SYSTEMS)
def test_stopped_training_ends_with_the_weights_of_an_uninterrupted_one(name: str, tmp_path: Path) -> None:
    config = tiny_prior(name, {"training.ema": 0.9})
    train(config, tmp_path / "whole", quiet=True)
    with pytest.raises(Stopped):
        train(config, tmp_path / "parts", quiet=True, stop_after=4)
    train(config, tmp_path / "parts", quiet=True)
    whole, parts = (load_file(tmp_path / each / "model" / "model.safetensors") for each in ("whole", "parts"))
    assert all(torch.equal(whole[key], parts[key]) for key in whole)
    losses = [line["loss"] for line in lines_of(tmp_path / "whole", "train")]
    assert losses == [line["loss"] for line in lines_of(tmp_path / "parts", "train")]
    assert losses[-1] < losses[0]
    metric = make_trainer(config, tmp_path / "other", quiet=True).task.headline[0]
    assert all(line[metric] > 0 for line in lines_of(tmp_path / "whole", "eval"))


@pytest.mark.parametrize("name", PRIOR_SYSTEMS)
def test_run_is_a_generator_that_holds_its_tokenizer(name: str, tmp_path: Path) -> None:
    train(tiny_prior(name, {"training.steps": 2}), tmp_path / "run", quiet=True)
    generator = Generator.from_pretrained(tmp_path / "run")
    assert generator.system == name
    assert generator.class_names is not None
    assert generator.class_names[7] == "sneaker"
    tiny = Tokenizer.from_pretrained("tiny")
    assert tokenizer_fingerprint(generator.tokenizer) == tokenizer_fingerprint(tiny)
    assert tokenizer_fingerprint(Tokenizer.from_pretrained(tmp_path / "run")) == tokenizer_fingerprint(tiny)
    assert generator(1, chunk=1, classes="boot").shape == (1, 1, 28, 28)


@pytest.mark.parametrize("name", PRIOR_SYSTEMS)
def test_step_of_every_prior_could_be_captured(name: str, tmp_path: Path, as_if_captured: Any) -> None:
    trainer = make_trainer(tiny_prior(name, {"training.device": "cpu"}), tmp_path / "run", quiet=True)
    trainer.begin()
    batch = next(trainer.batches())
    assert trainer.step_fn is not None
    trainer.step_fn(batch)
    with as_if_captured():
        trainer.step_fn(batch)


def test_initializing_from_a_run_takes_its_weights_and_counts_anew(tmp_path: Path) -> None:
    train(tiny_prior("gpt"), tmp_path / "first", quiet=True)
    config = tiny_prior("gpt", {"training.init_from": tmp_path / "first"})
    trainer = make_trainer(config, tmp_path / "second", quiet=True)
    trainer.begin()
    task = trainer.task
    assert isinstance(task, PriorTask)
    saved = load_file(tmp_path / "first" / "model" / "model.safetensors")
    own = task.prior.state_dict()
    assert saved["step"] == 6
    assert own["step"] == 0
    assert all(torch.equal(own[key], saved[key]) for key in own if key != "step")
    with pytest.raises(ArcvqError, match="does not fit"):
        make_trainer(
            tiny_prior("gpt", {"training.init_from": tmp_path / "first", "prior.width": 32}), tmp_path / "x", quiet=True
        ).begin()


@pytest.fixture
def swapped(tmp_path: Path) -> Path:
    """A folder with the tokenizer `tiny`, to be replaced by another one."""
    Tokenizer.from_pretrained("tiny").save_pretrained(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def change_weights(folder: Path) -> None:
    tokenizer = Tokenizer.from_pretrained(folder)
    with torch.no_grad():
        tokenizer.quantizer.codebook[0, 0] += 1e-3
    tokenizer.save_pretrained(folder)


def change_metric(folder: Path) -> None:
    """Another configuration of the same weights."""
    config = json.loads((folder / "config.json").read_text())
    assert config["quantizer"]["metric"] == "cosine"
    config["quantizer"]["metric"] = "euclidean"
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("change", [change_weights, change_metric])
def test_run_does_not_go_on_with_another_tokenizer(
    change: Any, swapped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_prior("gpt", {"tokenizer": swapped})
    with pytest.raises(Stopped):
        train(config, tmp_path / "run", quiet=True, stop_after=4)
    change(swapped)
    with monkeypatch.context() as patched:
        patched.setattr("arcvq.systems.prior_config.cached_values", lambda *_: pytest.fail("encoded"))
        with pytest.raises(ArcvqError, match="began with another tokenizer"):
            train(config, tmp_path / "run", quiet=True)
    Tokenizer.from_pretrained("tiny").save_pretrained(swapped)
    train(config, tmp_path / "run", quiet=True)
    change(swapped)
    other = tiny_prior("gpt", {"tokenizer": swapped, "training.init_from": tmp_path / "run"})
    with pytest.raises(ArcvqError, match="trained on another tokenizer"):
        train(other, tmp_path / "other", quiet=True)
    assert not (tmp_path / "other").exists()


def test_run_does_not_go_on_with_other_class_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_prior("gpt")
    with pytest.raises(Stopped):
        train(config, tmp_path / "run", quiet=True, stop_after=4)
    load = DataConfig.load

    def renamed(*arguments: Any) -> Any:
        sources = load(*arguments)
        for source in sources:
            source.images = replace(source.images, class_names=[f"class {i}" for i in range(10)])
        return sources

    monkeypatch.setattr(DataConfig, "load", renamed)
    with pytest.raises(ArcvqError, match="began with other class names"):
        train(config, tmp_path / "run", quiet=True)


def test_frequencies_are_those_of_all_training_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arcvq.tasks.prior.INIT_IMAGES", 5)
    monkeypatch.setattr("arcvq.tasks.prior.COUNTED_TOGETHER", 7)
    trainer = make_trainer(tiny_prior("gpt", {"data.flip": "true"}), tmp_path / "run", quiet=True)
    trainer.begin()
    assert isinstance(trainer.task, PriorTask)
    assert isinstance(trainer.source, ValueSource)
    tokens = trainer.source.values
    assert tokens.shape == (2, 48, 7, 7)
    counts = tokens.long().flatten().cpu().bincount(minlength=256)[None]
    assert torch.equal(trainer.task.prior.frequencies.cpu(), whole_frequencies(counts))


def test_run_without_classes_learns_none(tmp_path: Path) -> None:
    train(tiny_prior("gpt", {"conditional": "false", "training.steps": 1}), tmp_path / "run", quiet=True)
    generator = Generator.from_pretrained(tmp_path / "run")
    assert generator.prior.grid.classes == 0
    assert generator.class_names is None


def test_the_source_has_the_tokens_of_the_data_in_its_variants(tmp_path: Path) -> None:
    config = tiny_prior("gpt", {"data.flip": "true", "data.limit": 8})
    source, evaluation = config.load()
    assert source.values.shape == (2, 8, 7, 7)
    assert evaluation.values.shape == (1, 16, 7, 7)
    from arcvq.data import load_images

    pixels = load_images("sample", split="train", limit=8).gather(torch.arange(8))
    assert torch.equal(source.values[1].long(), Tokenizer.from_pretrained("tiny").encode(to_unit(pixels.flip(-1))))


@pytest.mark.parametrize("preset", [name for name in preset_names() if isinstance(load_config(name), PriorRunConfig)])
def test_configuration_of_every_preset_is_read_back_as_written(preset: str) -> None:
    config = load_config(preset)
    assert parse_config(to_dict(config)) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer": "null"}, "--tokenizer RUN"),
        ({"tokenizer": "nowhere"}, "nowhere: no such run or model"),
        ({"crops": 2}, "crops"),
        ({"data.crop": 30}, "data.crop is 30"),
        ({"data.image_size": 30}, "multiples of 4"),
        ({"prior.width": 15}, "prior.width"),
        ({"prior.label_dropout": 1}, "prior.label_dropout"),
        ({"prior.wdith": 16}, "prior.wdith"),
    ],
)
def test_wrong_setting_is_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ArcvqError) as raised:
        train(tiny_prior("gpt", changes), tmp_path / "run", quiet=True)
    assert message in str(raised.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("gpt", {}, "one token per position"),
        ("ldm", {"prior.multipliers": "[1, 1, 1, 1, 1]", "prior.attention": "[1]"}, "prior.multipliers"),
    ],
)
def test_prior_that_does_not_fit_is_refused_before_anything_is_encoded(
    name: str, changes: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantizer = VQConfig(codebook_size=8, heads=2)
    build_tokenizer(1, SmallConfig(width=16, latent_dim=8), quantizer, image_size=(28, 28)).save_pretrained(
        tmp_path / "tokenizer"
    )
    monkeypatch.setattr("arcvq.systems.prior_config.cached_values", lambda *_: pytest.fail("encoded"))
    with pytest.raises(ArcvqError, match=message):
        train(tiny_prior(name, {"tokenizer": tmp_path / "tokenizer", **changes}), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_continuous_tokenizer_is_refused(tmp_path: Path) -> None:
    settings = ["--data.limit=8", "--data.batch_size=8", "--training.steps=1", "--training.evaluations=0"]
    train(load_config("sample/vae", [*settings, "--autoencoder.width=16"]), tmp_path / "vae", quiet=True)
    with pytest.raises(ArcvqError, match="continuous"):
        train(tiny_prior("gpt", {"tokenizer": tmp_path / "vae"}), tmp_path / "run", quiet=True)


@pytest.mark.parametrize("name", ["gpt", "ldm"])
def test_dry_run_encodes_no_data_set(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arcvq.systems.prior_config.cached_values", lambda *_: pytest.fail("encoded"))
    found = dry_run(tiny_prior(name, {"data.flip": "true"}))
    assert found.steps == 6
    assert found.seconds_per_step > 0
    assert [key for key in found.facts if key in ("tokens", "latents")] == ["latents" if name == "ldm" else "tokens"]
