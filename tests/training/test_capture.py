"""What can be captured as a CUDA graph, and that a captured step would be the eager one."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from run_records import SAMPLE_SYSTEMS
from safetensors.torch import load_file
from torch import Tensor

from arcvq import VQ, ArcvqError, Tokenizer
from arcvq.data import ImageSource, Source, TensorSource, batches, load_images, to_unit
from arcvq.systems import TokenizerConfig, make_trainer, train
from arcvq.tasks import Task, TokenizerTask
from arcvq.training import Trainer, TrainingConfig
from arcvq.training.capture import Snapshot, can_capture
from arcvq.training.checkpoint import Position, load_checkpoint, random_state, save_checkpoint
from arcvq.training.config import OptimizerSettings
from arcvq.training.optimizers import make_optimizer, set_learning_rate
from arcvq.training.step import Step

MakeConfig = Callable[..., TokenizerConfig]

# Four batches an epoch, the last a short one; a rate that float32 holds exactly, as the captured optimizer does.
LENGTH: dict[str, Any] = {"data.limit": 56, "training.steps": 10, "training.learning_rate": 2**-10}
RESTARTS = {"quantizer.restart": "{decay: 0.5, threshold: 0.9}"}


def tokenizer_of(trainer: Trainer) -> Tokenizer:
    tokenizer = trainer.task.networks["tokenizer"]
    assert isinstance(tokenizer, Tokenizer)
    return tokenizer


def state_of(trainer: Trainer) -> dict[str, Tensor]:
    """All that a step changes, by name; without the optimizer's zeros, which a fresh one does not have yet."""
    found = {name: value.clone() for name, value in tokenizer_of(trainer).state_dict().items()}
    for average in trainer.averages.values():
        found |= {f"average.{name}": value.clone() for name, value in average.state_dict().items()}
    for i, entries in enumerate(trainer.optimizers["tokenizer"].state.values()):
        found |= {f"{i}.{name}": value.clone() for name, value in entries.items() if value.any()}
    return found | random_state()


def snapshot_of(trainer: Trainer) -> Snapshot:
    modules = [tokenizer_of(trainer), *trainer.averages.values()]
    return Snapshot(modules, list(trainer.optimizers.values()))


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def begun(config: TokenizerConfig, folder: Path) -> Trainer:
    trainer = make_trainer(config, folder, quiet=True)
    trainer.begin()
    return trainer


def resident() -> TensorSource:
    return TensorSource({"x": torch.zeros(2, 1)}, 2)


def folder_of_images() -> Source:
    """Images that are read as they are needed."""
    source = ImageSource(load_images("sample", split="test", limit=2), 2)
    source.resident = False
    return source


def task_that_reads_the_host() -> Task:
    return type("Reading", (Task,), {"capture_blocker": "Reader reads the host in its steps"})({})


@pytest.mark.parametrize(
    ("changes", "facts", "why"),
    [
        ({}, {"device": "cpu"}, "a CUDA graph needs a CUDA device"),
        ({}, {"processes": 2}, "2 processes"),
        ({"accumulate": 3}, {}, "training.accumulate is 3"),
        ({"precision": "fp16"}, {}, "training.precision is fp16"),
        ({}, {"source": folder_of_images()}, "the images of sample are not on the device"),
        ({}, {"task": task_that_reads_the_host()}, "Reader reads the host"),
    ],
)
def test_step_that_cannot_be_captured_is_not_and_always_is_refused(
    changes: dict[str, Any], facts: dict[str, Any], why: str
) -> None:
    known = {"device": "cuda", "processes": 1, "source": resident(), "task": Task({}), **facts}
    accelerator: Any = SimpleNamespace(device=torch.device(known["device"]), num_processes=known["processes"])
    arguments = (accelerator, known["source"], known["task"])
    for word in ("auto", "never"):
        assert not can_capture(TrainingConfig(steps=1, capture=word, **changes), *arguments)
    with pytest.raises(ArcvqError, match=f"training.capture is always, but {why}.*: use auto or never"):
        can_capture(TrainingConfig(steps=1, capture="always", **changes), *arguments)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_step_that_can_be_captured_is_unless_capture_is_never(precision: Any) -> None:
    accelerator: Any = SimpleNamespace(device=torch.device("cuda"), num_processes=1)
    for word, expected in (("auto", True), ("always", True), ("never", False)):
        training = TrainingConfig(steps=1, capture=word, precision=precision)  # type: ignore[arg-type]
        assert can_capture(training, accelerator, resident(), Task({})) is expected


def test_quantizer_that_reads_the_host_blocks_capture(tiny_system: MakeConfig) -> None:
    tokenizer = tiny_system("vq-vae").build_tokenizer(1, (28, 28), 10)
    assert TokenizerTask(tokenizer, torch.dist).capture_blocker is None
    tokenizer.quantizer = type("Reader", (VQ,), {"capturable": False})(8, 32)
    assert TokenizerTask(tokenizer, torch.dist).capture_blocker == "Reader reads the host in its steps"


def test_capture_on_a_cpu_is_refused_before_anything_is_written(tmp_path: Path, tiny_system: MakeConfig) -> None:
    config = tiny_system(changes={"training.capture": "always", "training.device": "cpu"})
    with pytest.raises(ArcvqError, match=r"^training\.capture is always, but a CUDA graph needs"):
        train(config, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_batches_are_indices_of_the_images_in_their_order(tmp_path: Path, tiny_system: MakeConfig) -> None:
    trainer = make_trainer(tiny_system(changes={**LENGTH, "training.steps": 8}), tmp_path / "run", quiet=True)
    fetched = []
    for batch in trainer.batches():
        assert batch["index"].dtype == torch.int64
        fetched.append(trainer.source.fetch(batch)["image"].cpu())
        trainer.position.step += 1
    images = load_images("sample", split="train", limit=56)
    expected = [pixels for epoch in (0, 1) for pixels in batches(images, 16, seed=1, epoch=epoch)]
    assert [len(pixels) for pixels in fetched] == [16, 16, 16, 8] * 2
    assert all(torch.equal(a, b) for a, b in zip(fetched, expected, strict=True))


def test_step_equals_the_plain_training_loop(tmp_path: Path, tiny_system: MakeConfig) -> None:
    config = tiny_system(changes={**LENGTH, "training.gradient_clip": 0.5, "training.device": "cpu"})
    trainer, plain = begun(config, tmp_path / "run"), make_trainer(config, tmp_path / "plain", quiet=True)
    assert isinstance(trainer.step_fn, Step)
    model = tokenizer_of(plain)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2**-10, weight_decay=0.0, fused=True)
    for batch, _ in zip(trainer.batches(), range(5)):
        result = trainer.step(batch)
        images = to_unit(plain.source.fetch(batch)["image"])
        decoded, quantized = model(images)
        terms = {**plain.task.objective(decoded.images, images), **quantized.losses}
        torch.stack(list(terms.values())).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        model.quantizer.after_step(quantized)
        optimizer.zero_grad()
        assert_equal(result.terms, {name: term.detach() for name, term in terms.items()})
        for value in (*result.terms.values(), *result.stats.values(), *result.losses.values()):
            assert not value.requires_grad
    assert_equal(dict(tokenizer_of(trainer).state_dict()), dict(model.state_dict()))


@pytest.mark.parametrize("name", SAMPLE_SYSTEMS)
def test_step_of_every_system_could_be_captured(
    name: str, tmp_path: Path, tiny_system: MakeConfig, as_if_captured: Any
) -> None:
    config = tiny_system(name, {**LENGTH, "training.device": "cpu", "training.ema": 0.9})
    trainer = make_trainer(config, tmp_path / "run", quiet=True)
    trainer.begin()
    assert trainer.task.capture_blocker is None
    for stage in range(len(trainer.stage_steps)):
        trainer.position.step = sum(trainer.stage_steps[:stage])
        batch = next(trainer.batches())
        step = trainer.step_fn
        assert isinstance(step, Step)
        before, snapshot = state_of(trainer), snapshot_of(trainer)
        with as_if_captured():
            result = step(batch, (1.0,), trainer.phase)
        assert all(torch.isfinite(value).all() for part in (result.terms, result.stats) for value in part.values())
        assert any(not torch.equal(value, before[key]) for key, value in tokenizer_of(trainer).state_dict().items())
        snapshot.restore()
        assert_equal(state_of(trainer), before)


def test_snapshot_restores_the_state(tmp_path: Path, tiny_system: MakeConfig) -> None:
    config = tiny_system(changes={**LENGTH, **RESTARTS, "training.device": "cpu", "training.ema": 0.9})
    plain = begun(config, tmp_path / "plain")
    for batch, _ in zip(plain.batches(), range(3)):
        plain.step(batch)
    expected = state_of(plain)
    trainer = begun(config, tmp_path / "run")
    step = trainer.step_fn
    assert isinstance(step, Step)
    for batch, _ in zip(trainer.batches(), range(3)):  # with a fresh optimizer first, then with one that has a past
        before, addresses = state_of(trainer), [p.data_ptr() for p in tokenizer_of(trainer).parameters()]
        snapshot = snapshot_of(trainer)
        for _ in range(3):
            step(batch, (1.0,), trainer.phase)
        after = state_of(trainer)
        for name in ("quantizer.codebook", "average.quantizer.codebook", "cpu"):
            assert not torch.equal(after[name], before[name])
        snapshot.restore()
        assert_equal(state_of(trainer), before)
        assert [p.data_ptr() for p in tokenizer_of(trainer).parameters()] == addresses
        trainer.step(batch)
    assert_equal(state_of(trainer), expected)


@pytest.mark.parametrize("captured", [False, True])
def test_checkpoint_is_the_same_whether_steps_are_captured(
    captured: bool, tmp_path: Path, tiny_system: MakeConfig
) -> None:
    settings = OptimizerSettings(0.5, (0.9, 0.999), 0.0, None)
    models = [tiny_system().build_tokenizer(1, (28, 28), 10) for _ in range(2)]
    models[1].to(memory_format=torch.channels_last)
    writer = make_optimizer(models[0], settings, captured=captured)
    reader = make_optimizer(models[1], settings, captured=not captured)
    for parameter in models[0].parameters():
        parameter.grad = torch.randn_like(parameter)
    writer.step()
    path = save_checkpoint(tmp_path, Position(), {"net": models[0]}, {}, {"net": writer}, None, [random_state()])
    assert json.loads((path / "state.json").read_text())["optimizers"]["net"]["param_groups"][0]["lr"] == 0.5
    assert load_file(path / "net-optimizer.safetensors")
    rates = [group["lr"] for group in reader.param_groups]
    load_checkpoint(path, {"net": models[1]}, {}, {"net": reader}, 0)
    (group,) = reader.param_groups
    assert group["lr"] is rates[0]
    assert group["capturable"] is not captured
    for one, other in zip(models[0].parameters(), models[1].parameters()):
        assert_equal(writer.state[one], reader.state[other])
        assert reader.state[other]["exp_avg"].stride() == other.stride()
    set_learning_rate(reader, 0.25)
    assert float(group["lr"]) == 0.25
    assert isinstance(group["lr"], Tensor) is not captured
