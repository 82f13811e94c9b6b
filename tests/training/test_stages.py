"""A stage trains what it names and leaves everything else as it was, to the bit."""

import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from run_records import read_losses
from safetensors.torch import load_file
from torch import Tensor

from arcvq import ArcvqError
from arcvq.errors import Stopped
from arcvq.systems import TokenizerConfig, make_trainer, train

MakeConfig = Callable[..., TokenizerConfig]
# Restarts and a ball that shrinks would move codes that no stage trains.
UPDATES = {
    "quantizer.restart": "{decay: 0.5, threshold: 0.9}",
    "quantizer.ball": "{schedule: linear, start: 1.0, end: 0.1, duration: 6}",
}


def train_stages(config: TokenizerConfig, run: Path, stops: list[int]) -> list[dict[str, Tensor]]:
    """The weights at each stop, and at the end."""
    found = []
    for step in stops:
        with pytest.raises(Stopped):
            train(config, run, quiet=True, stop_after=step)
        found.append(load_file(run / "checkpoints" / f"step-{step:08d}" / "tokenizer.safetensors"))
    train(config, run, quiet=True)
    return [*found, load_file(run / "model" / "model.safetensors")]


def changed_parts(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    """`encoder`, `decoder` or the quantizer's tensor, wherever one differs."""
    names = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    return {name if name.startswith("quantizer") else name.split(".")[1] for name in names}


@pytest.mark.parametrize(
    ("stage", "changed"),
    [
        ("[autoencoder.encoder]", {"encoder", "quantizer.step"}),
        ("[autoencoder.decoder]", {"decoder", "quantizer.step"}),
        (
            "[autoencoder.encoder, quantizer]",
            {"encoder", "quantizer.codebook", "quantizer.usage_ema", "quantizer.step"},
        ),
        ("[quantizer.codebook]", {"quantizer.codebook", "quantizer.usage_ema", "quantizer.step"}),
        ("[]", {"encoder", "decoder", "quantizer.codebook", "quantizer.usage_ema", "quantizer.step"}),
    ],
)
def test_a_stage_changes_only_what_it_names(
    stage: str, changed: set[str], tmp_path: Path, tiny_system: MakeConfig
) -> None:
    stages = f"[{{steps: 2}}, {{train: {stage}, steps: 3}}]"
    config = tiny_system(changes={**UPDATES, "training.steps": None, "training.stages": stages})
    first, last = train_stages(config, tmp_path / "run", [2])
    assert changed_parts(first, last) == changed
    assert int(last["quantizer.step"]) == 5


@pytest.mark.parametrize(
    ("stage", "moves"),
    [
        ("[autoencoder.encoder]", False),
        ("[autoencoder.encoder, quantizer]", True),
        ("[autoencoder.decoder, quantizer.codebook]", True),
    ],
)
def test_running_means_move_only_in_a_stage_that_names_them(
    stage: str, moves: bool, tmp_path: Path, tiny_system: MakeConfig
) -> None:
    stages = f"[{{steps: 2}}, {{train: {stage}, steps: 3}}]"
    config = tiny_system("vq-vae-ema", {"training.steps": None, "training.stages": stages})
    first, last = train_stages(config, tmp_path / "run", [2])
    for name in ("codebook", "counts", "sums"):
        assert torch.equal(first[f"quantizer.{name}"], last[f"quantizer.{name}"]) != moves
    assert int(last["quantizer.step"]) == 5


def test_a_stage_without_a_gradient_is_refused(tmp_path: Path, tiny_system: MakeConfig) -> None:
    changes = {"training.steps": None, "training.stages": "[{train: [quantizer], steps: 1}]"}
    with pytest.raises(ArcvqError, match="nothing in quantizer learns by gradient"):
        train(tiny_system("vq-vae-ema", changes), tmp_path / "run", quiet=True)


def test_stack_trains_its_levels_one_after_another(tmp_path: Path, tiny_system: MakeConfig) -> None:
    first, last = train_stages(tiny_system("hvq-vae"), tmp_path / "run", [3])
    changed = {name for name in first if not torch.equal(first[name], last[name])}
    assert {name for name in changed if name.startswith("lower")} == {
        f"lower.0.standardize.{name}" for name in ("count", "mean", "variance")
    }
    assert {"autoencoder.encoder.0.weight", "quantizer.codebook", "autoencoder.decoder.0.weight"} <= changed
    assert (int(first["lower.0.quantizer.step"]), int(first["quantizer.step"])) == (3, 0)
    assert (int(last["lower.0.quantizer.step"]), int(last["quantizer.step"])) == (3, 3)


def test_one_tensor_may_be_named(tmp_path: Path, tiny_system: MakeConfig) -> None:
    stages = "[{steps: 2}, {train: [autoencoder.decoder.0.bias], steps: 2}]"
    config = tiny_system(changes={"training.steps": None, "training.stages": stages})
    first, last = train_stages(config, tmp_path / "run", [2])
    assert {name for name in first if not torch.equal(first[name], last[name])} == {
        "autoencoder.decoder.0.bias",
        "quantizer.step",
    }


def test_average_is_a_copy_of_what_a_stage_does_not_train(tmp_path: Path, tiny_system: MakeConfig) -> None:
    """The decoder of the last stage is trained on this encoder and these codes, so they are what must be saved with it."""
    stages = "[{steps: 2}, {train: [autoencoder.decoder], steps: 3}]"
    changes = {"training.steps": None, "training.stages": stages, "training.ema": 0.9, "training.checkpoints": 5}
    run, seen = tmp_path / "run", {}
    for step in (2, 3, 4):
        with pytest.raises(Stopped):
            train(tiny_system("vq-vae", changes), run, quiet=True, stop_after=step)
        folder = run / "checkpoints" / f"step-{step:08d}"
        seen[step] = [load_file(folder / f"{name}.safetensors") for name in ("tokenizer", "tokenizer-average")]
    train(tiny_system("vq-vae", changes), run, quiet=True)
    assert {"encoder", "decoder", "quantizer.codebook"} <= changed_parts(*seen[2])
    for step in (3, 4):
        assert changed_parts(*seen[step]) == {"decoder"}
    saved = load_file(run / "model" / "model.safetensors")
    assert changed_parts(seen[2][0], saved) == {"decoder", "quantizer.step"}


def test_each_stage_sees_an_order_of_its_own_and_starts_a_new_optimizer(
    tmp_path: Path, tiny_system: MakeConfig
) -> None:
    stages = "[{steps: 4}, {steps: 4, learning_rate: 1.0e-9}]"
    train(tiny_system(changes={"training.steps": None, "training.stages": stages}), tmp_path / "run", quiet=True)
    losses = read_losses(tmp_path / "run")
    # The second stage hardly learns, so its losses would repeat if it saw the same batches again.
    assert len(losses) == 8
    assert len({round(loss, 5) for loss in losses[4:]}) == 4
    state = load_file(tmp_path / "run" / "checkpoints" / "step-00000008" / "tokenizer-optimizer.safetensors")
    assert {float(tensor) for name, tensor in state.items() if name.endswith(".step")} == {4.0}


@pytest.mark.parametrize("part", ["discriminator", "encod"])
def test_a_stage_that_names_nothing_is_refused_before_anything_is_trained(
    part: str, tmp_path: Path, tiny_system: MakeConfig
) -> None:
    stages = f"[{{steps: 1}}, {{train: [{part}], steps: 1}}]"
    config = tiny_system(changes={"training.steps": None, "training.stages": stages})
    with pytest.raises(ArcvqError) as raised:
        train(config, tmp_path / "run", quiet=True)
    assert "training.stages[1].train" in str(raised.value)
    assert f"'{part}'" in str(raised.value)
    assert "autoencoder, quantizer" in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_a_stage_frees_the_optimizer_of_the_one_before(tmp_path: Path, tiny_system: MakeConfig) -> None:
    stages = "[{train: [autoencoder.encoder], steps: 1}, {train: [autoencoder.decoder], steps: 1}]"
    config = tiny_system("vq-vae", {"training.steps": None, "training.stages": stages})
    trainer = make_trainer(config, tmp_path / "run", quiet=True)
    trainer.begin()
    first = weakref.ref(trainer.optimizers["tokenizer"])
    for batch in trainer.batches():
        trainer.step(batch)
    gc.collect()
    assert first() is None


def test_a_length_beside_stages_is_refused(tiny_system: MakeConfig) -> None:
    stages = "[{train: [autoencoder.encoder], steps: 1}]"
    with pytest.raises(ArcvqError, match="give each its own epochs or steps"):
        tiny_system("vq-vae", {"training.steps": 3, "training.stages": stages, "training.epochs": 2})
