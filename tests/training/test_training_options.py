"""Every system learns, and every option of a training does what it says."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from run_records import SAMPLE_SYSTEMS, read_lines, read_losses
from safetensors.torch import load_file

from arcvq import ArcvqError, Tokenizer
from arcvq.data import load_images, to_unit
from arcvq.systems import TokenizerConfig, make_trainer, train
from arcvq.training import TrainingConfig
from arcvq.training.optimizers import scheduled_rate

MakeConfig = Callable[..., TokenizerConfig]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("name", SAMPLE_SYSTEMS)
def test_short_training_lowers_loss_and_test_error(name: str, tmp_path: Path, tiny_system: MakeConfig) -> None:
    changes = {"training.steps": 60, "training.learning_rate": 0.005, "data.limit": 128, "data.batch_size": 16}
    train(tiny_system(name, changes), tmp_path / "run", quiet=True)
    losses = read_losses(tmp_path / "run")
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    errors = [line["mse"] for line in read_lines(tmp_path / "run") if line["kind"] == "eval"]
    assert errors[-1] < 0.8 * errors[0]


def test_balanced_init_uses_the_latents_of_the_untrained_encoder(tmp_path: Path, tiny_system: MakeConfig) -> None:
    trainer = make_trainer(tiny_system("lfq", {"quantizer.balanced": True}), tmp_path / "run", quiet=True)
    trainer.begin()
    tokenizer, images = trainer.task.networks["tokenizer"], trainer.source.images
    with torch.no_grad():
        latents = tokenizer.latents(to_unit(images.gather(torch.arange(len(images)))))
        bits = tokenizer.quantizer.to_code_space(latents.movedim(1, -1))
    torch.testing.assert_close(bits.mean(dim=0), torch.zeros(bits.shape[1]), atol=1e-4, rtol=0)
    torch.testing.assert_close(bits.std(dim=0), torch.ones(bits.shape[1]), atol=1e-4, rtol=0)


def test_evaluations_that_draw_do_not_change_the_training(tmp_path: Path, tiny_system: MakeConfig) -> None:
    once, often = (
        train(
            tiny_system("vae", {"quantizer.sample": True, "training.evaluations": evaluations}),
            tmp_path / str(evaluations),
            quiet=True,
        )
        for evaluations in (1, 6)
    )
    for name, tensor in weights(once).items():
        assert torch.equal(tensor, weights(often)[name]), name


UNDER_SAMP = ["cvq-vae-samp", "simvq-samp", "vq-vae-ema-samp", "vq-vae-rotation-samp"]


@pytest.mark.parametrize("name", UNDER_SAMP)
def test_other_system_under_samp_learns_inside_the_ball(name: str, tmp_path: Path, tiny_system: MakeConfig) -> None:
    changes = {"training.steps": 100, "data.limit": 128, "data.batch_size": 16}
    tokenizer = Tokenizer.from_pretrained(train(tiny_system(name, changes), tmp_path / "run", quiet=True))
    losses = read_losses(tmp_path / "run")
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    errors = [line["mse"] for line in read_lines(tmp_path / "run") if line["kind"] == "eval"]
    assert errors[-1] < 0.8 * errors[0]
    arcs = [line["arc_loss"] for line in read_lines(tmp_path / "run") if line["kind"] == "train"]
    assert 0 < sum(arcs[-5:]) < 0.8 * sum(arcs[:5])
    assert tokenizer.quantizer.codebook.norm(dim=1).max() <= math.exp(3e-4 * 100) * (1 + 1e-6)


@pytest.mark.parametrize("name", UNDER_SAMP)
def test_small_ball_bounds_the_codes_of_other_systems_under_samp(
    name: str, tmp_path: Path, tiny_system: MakeConfig
) -> None:
    model = train(tiny_system(name, {"quantizer.ball.start": 0.2}), tmp_path / "run", quiet=True)
    norms = Tokenizer.from_pretrained(model).quantizer.codebook.norm(dim=1)
    assert norms.max().item() == pytest.approx(0.2 * math.exp(3e-4 * 6), rel=1e-5)


def test_selected_weights_are_those_of_the_lowest_test_error(tmp_path: Path, tiny_system: MakeConfig) -> None:
    changes = {"training.steps": 10, "training.evaluations": 10, "training.learning_rate": 0.1, "data.limit": 56}
    train(tiny_system(changes={**changes, "training.select": "test-best"}), tmp_path / "best", quiet=True)
    train(tiny_system(changes=changes), tmp_path / "last", quiet=True)
    errors = {line["step"]: line["mse"] for line in read_lines(tmp_path / "best") if line["kind"] == "eval"}
    best = min(errors, key=errors.__getitem__)
    assert 0 < best < 10
    for run, step in (("best", best), ("last", 10)):
        model = load_file(tmp_path / run / "model" / "model.safetensors")
        history = load_file(tmp_path / run / "codebooks" / f"step-{step:08d}.safetensors")
        assert torch.equal(model["quantizer.codebook"], history["codebook"])
        assert int(model["quantizer.step"]) == step


def test_held_out_images_are_evaluated_and_not_trained_on(tmp_path: Path, tiny_system: MakeConfig) -> None:
    changes = {"data.limit": None, "data.holdout": 9970, "training.evaluation_images": 20, "training.steps": 2}
    trainer = make_trainer(tiny_system(changes=changes), tmp_path / "run", quiet=True)
    images, held_out, whole = trainer.source.images, trainer.evaluation.images, load_images("sample", split="train")
    assert (len(images), len(held_out)) == (len(whole) - 9970, 20)
    first = torch.arange(20)
    assert torch.equal(images.gather(first).cpu(), whole.gather(first))
    assert torch.equal(held_out.gather(first).cpu(), whole.gather(first + len(whole) - 9970))
    trainer.run()
    assert [line["step"] for line in read_lines(tmp_path / "run") if line["kind"] == "eval"] == [0, 1, 2]
    changes = {"data.holdout": 50, "data.limit": 64, "training.select": "test-best"}
    train(tiny_system(changes=changes), tmp_path / "best", quiet=True)
    assert "lowest mse on the held-out images" in (tmp_path / "best" / "model" / "README.md").read_text()


def test_bfloat16_training_gives_a_float32_model(tmp_path: Path, tiny_system: MakeConfig) -> None:
    train(tiny_system(), tmp_path / "fp32", quiet=True)
    train(tiny_system(changes={"training.precision": "bf16"}), tmp_path / "bf16", quiet=True)
    exact, rounded = read_losses(tmp_path / "fp32"), read_losses(tmp_path / "bf16")
    assert rounded != exact
    assert rounded == pytest.approx(exact, rel=0.02)  # bfloat16 has 8 bits: 0.4 % for each number
    assert rounded[-1] < rounded[0]
    tensors = load_file(tmp_path / "bf16" / "model" / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32, torch.int64}


def test_float16_without_a_gpu_is_refused(tmp_path: Path, tiny_system: MakeConfig) -> None:
    config = tiny_system(changes={"training.precision": "fp16", "training.device": "cpu"})
    with pytest.raises(ArcvqError) as raised:
        train(config, tmp_path / "run", quiet=True)
    assert "training.precision fp16 needs a GPU" in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_compiled_training_gives_the_losses_of_the_eager_one(tmp_path: Path, tiny_system: MakeConfig) -> None:
    changes = {"training.steps": 3, "training.learning_rate": 0.003}
    train(tiny_system("vq-vae", changes), tmp_path / "eager", quiet=True)
    train(tiny_system("vq-vae", {**changes, "training.compile": "true"}), tmp_path / "compiled", quiet=True)
    assert read_losses(tmp_path / "compiled") == pytest.approx(read_losses(tmp_path / "eager"), rel=1e-4)


def test_every_training_of_a_process_is_compiled(
    tmp_path: Path, tiny_system: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None runs into the compiler's limit because of those before it."""
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **_: compile(function, backend="eager", dynamic=False))
    torch.compiler.reset()
    changes = {"training.compile": "true", "training.steps": 1}
    with torch.compiler.config.patch(recompile_limit=1, fail_on_recompile_limit_hit=True):
        for codes in (16, 17):
            train(tiny_system(changes={**changes, "quantizer.codebook_size": codes}), tmp_path / str(codes), quiet=True)


def test_smaller_last_batch_is_not_compiled(
    tmp_path: Path, tiny_system: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compilation takes as long as thousands of steps."""
    compiled: list[int] = []

    def compile(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        def call(name: str, network: Any, batch: Any, *arguments: Any) -> Any:
            compiled.append(len(batch["image"]))
            return function(name, network, batch, *arguments)

        return call if function.__name__ == "loss" else function

    monkeypatch.setattr(torch, "compile", compile)
    changes = {"training.compile": "true", "training.steps": 6, "data.batch_size": 16}
    for limit, rows in ((40, [16, 16, 16, 16]), (10, [10] * 6)):
        compiled.clear()
        train(tiny_system(changes={**changes, "data.limit": limit}), tmp_path / str(limit), quiet=True)
        assert compiled == rows


def test_micro_batches_add_up_to_the_batch(tmp_path: Path, tiny_system: MakeConfig) -> None:
    # Without an ArcLoss nothing contrasts tokens within a micro-batch, so only the order of sums differs. The last batch
    # of the epoch has two images: fewer than there are micro-batches.
    changes = {"data.limit": 34, "training.steps": 6, "training.checkpoints": 1}
    for accumulate in (1, 3):
        config = tiny_system("vq-vae", {**changes, "training.accumulate": accumulate})
        train(config, tmp_path / str(accumulate), quiet=True)
    assert read_losses(tmp_path / "3") == pytest.approx(read_losses(tmp_path / "1"), rel=1e-5)
    whole, parts = (load_file(tmp_path / run / "model" / "model.safetensors") for run in ("1", "3"))
    for name, tensor in whole.items():
        # Adam divides by the gradient's size: a rounding of a gradient near zero moves a weight by up to a step, 1e-3.
        assert (tensor - parts[name]).abs().float().mean() < 1e-4, name


def test_epochs_and_steps_are_two_ways_to_say_a_length(tmp_path: Path, tiny_system: MakeConfig) -> None:
    train(tiny_system(changes={"training.steps": None, "training.epochs": 2}), tmp_path / "epochs", quiet=True)
    train(tiny_system(changes={"training.steps": 8}), tmp_path / "steps", quiet=True)
    assert read_losses(tmp_path / "epochs") == read_losses(tmp_path / "steps")
    assert len(read_losses(tmp_path / "epochs")) == 8


def rates(training: TrainingConfig, steps: int) -> list[float]:
    return [scheduled_rate(2.0, training, step, steps) for step in range(steps)]


def test_learning_rate_follows_its_schedule() -> None:
    assert rates(TrainingConfig(steps=4), 4) == [2.0, 2.0, 2.0, 2.0]
    assert rates(TrainingConfig(steps=4, warmup_steps=2), 4) == [1.0, 2.0, 2.0, 2.0]
    cosine = TrainingConfig(steps=4, schedule="cosine")
    assert rates(cosine, 4) == pytest.approx([2.0, 1 + 0.5**0.5, 1.0, 1 - 0.5**0.5])
    floor = TrainingConfig(steps=4, schedule="cosine", final_rate=0.5)
    assert rates(floor, 4) == pytest.approx([2.0, 1.5 + 0.5**1.5, 1.5, 1.5 - 0.5**1.5])
    flat = TrainingConfig(steps=8, schedule="cosine", final_rate=0.5, flat_share=0.5)
    assert rates(flat, 8) == pytest.approx([2.0] * 5 + [1.5 + 0.5**1.5, 1.5, 1.5 - 0.5**1.5])
    flat = TrainingConfig(steps=8, schedule="cosine", flat_share=0.5, warmup_steps=4)
    assert rates(flat, 8)[:5] == [0.5, 1.0, 1.5, 2.0, 2.0]


def test_logged_learning_rate_is_the_schedules(tmp_path: Path, tiny_system: MakeConfig) -> None:
    config = tiny_system(changes={"training.steps": 4, "training.warmup_steps": 2, "training.learning_rate": 0.002})
    train(config, tmp_path / "run", quiet=True)
    logged = [line["learning_rate"] for line in read_lines(tmp_path / "run") if line["kind"] == "train"]
    assert logged == pytest.approx([0.001, 0.002, 0.002, 0.002])


def order_of(tiny_system: MakeConfig, folder: Path, changes: dict[str, Any], first: int = 0) -> list[torch.Tensor]:
    """The images of every batch from step `first` on, without training."""
    trainer = make_trainer(tiny_system(changes={"training.steps": 8, **changes}), folder, quiet=True)
    trainer.position.step = first
    found = []
    for batch in trainer.batches():
        found.append(trainer.source.fetch(batch)["image"])
        trainer.position.step += 1
    return found


def test_order_of_the_data_is_a_function_of_seed_and_epoch(tmp_path: Path, tiny_system: MakeConfig) -> None:
    order = order_of(tiny_system, tmp_path / "a", {})
    assert len(order) == 8
    epochs = torch.cat(order[:4]).flatten(1), torch.cat(order[4:]).flatten(1)
    assert not torch.equal(*epochs)
    # Each epoch sees every image once.
    assert torch.equal(*(torch.unique(epoch, dim=0, return_counts=True)[0] for epoch in epochs))
    again = order_of(tiny_system, tmp_path / "b", {"quantizer.codebook_size": 16, "training.learning_rate": 1})
    assert all(torch.equal(a, b) for a, b in zip(order, again))
    for first in (3, 4, 6):
        rest = order_of(tiny_system, tmp_path / f"from {first}", {}, first)
        assert len(rest) == 8 - first
        assert all(torch.equal(a, b) for a, b in zip(rest, order[first:]))
    other = order_of(tiny_system, tmp_path / "c", {"training.seed": 2})
    assert not torch.equal(other[0], order[0])
