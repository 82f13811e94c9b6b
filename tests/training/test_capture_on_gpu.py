"""On a GPU: a captured step gives what the eager one gives."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from run_records import CHECKPOINT_FILES, SAMPLE_SYSTEMS, last_checkpoint, read_lines, read_losses
from safetensors.torch import load_file
from test_capture import LENGTH, RESTARTS, assert_equal, begun, state_of, tokenizer_of
from torch import Tensor

from arcvq import VQ, ArcvqError
from arcvq.errors import Stopped
from arcvq.systems import TokenizerConfig, train
from arcvq.training import Trainer
from arcvq.training.capture import Captured
from arcvq.training.step import Step, StepResult

MakeConfig = Callable[..., TokenizerConfig]
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture
def _repeatable() -> Iterator[None]:
    """Convolutions that add up in one order: any difference then comes from the capture."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cudnn.deterministic = before
    torch._dynamo.reset()


def on_gpu(tiny_system: MakeConfig, capture: str, changes: dict[str, Any] | None = None) -> TokenizerConfig:
    return tiny_system(changes={**LENGTH, **(changes or {}), "training.capture": capture})


def scalars(result: StepResult) -> dict[str, float]:
    return {name: float(value) for part in (result.terms, result.stats) for name, value in part.items()}


def run_steps(trainer: Trainer) -> list[dict[str, float]]:
    """Take every step that is left. Returns the scalars of each."""
    return [scalars(trainer.step(batch)) for batch in trainer.batches()]


def assert_close_weights(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        difference = (value.double() - other[name].double()).abs()
        assert difference.mean() < 1e-4, f"{name}: mean {difference.mean():.1e}, largest {difference.max():.1e}"


@pytest.mark.usefixtures("_repeatable")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"training.precision": "bf16"},
        {"training.ema": 0.9},
        {"training.gradient_clip": 0.5, "training.schedule": "cosine", "training.warmup_steps": 5},
        {**RESTARTS, "quantizer.init": "kmeans", "quantizer.arc.schedule": "adaptive"},
        {"quantizer.entropy": "{weight: 0.1, temperature: 1.0}", "quantizer.heads": 2},
    ],
    ids=["plain", "bf16", "average", "clip and schedule", "restarts", "entropy and heads"],
)
def test_hundred_captured_steps_equal_a_hundred_eager_steps(
    changes: dict[str, Any], tmp_path: Path, tiny_system: MakeConfig
) -> None:
    trainers, logged = {}, {}
    for word in ("never", "always"):
        trainers[word] = begun(on_gpu(tiny_system, word, {**changes, "training.steps": 100}), tmp_path / word)
        logged[word] = run_steps(trainers[word])
    eager, captured = trainers["never"], trainers["always"]
    assert isinstance(eager.step_fn, Step)
    assert isinstance(captured.step_fn, Captured)
    assert len(captured.step_fn.recordings) == 2  # full batches, and the last of an epoch
    quantizers = [tokenizer_of(trainer).quantizer for trainer in (eager, captured)]
    assert [int(quantizer.step) for quantizer in quantizers] == [100, 100]
    for name in ("ball_radius", "arc_weight") if "quantizer.restart" not in changes else ("ball_radius",):
        assert [line[name] for line in logged["always"]] == [line[name] for line in logged["never"]]
    samps = [quantizer.samp for quantizer in quantizers]  # type: ignore[union-attr]
    assert torch.equal(*(samp.radius(quantizer.step) for samp, quantizer in zip(samps, quantizers)))
    steps = {float(entries["step"]) for entries in captured.optimizers["tokenizer"].state.values()}
    assert steps == {100.0}
    # Sums of k-means on a GPU differ in their last bits from run to run, and those decide which codes restart: such runs differ
    # after their first step, as two eager ones do.
    drawn = "quantizer.restart" in changes
    for name in logged["never"][0]:
        ours, theirs = ([line[name] for line in logged[word][: 1 if drawn else 100]] for word in ("always", "never"))
        assert ours == pytest.approx(theirs, rel=0.02 if name in ("perplexity", "usage") else 1e-3, abs=1e-6), name
    if not drawn:
        assert_close_weights(tokenizer_of(captured).state_dict(), tokenizer_of(eager).state_dict())
        for name, average in captured.averages.items():
            assert_close_weights(average.state_dict(), eager.averages[name].state_dict())


@pytest.mark.usefixtures("_repeatable")
@pytest.mark.parametrize("name", SAMPLE_SYSTEMS)
def test_every_system_is_captured_and_begins_like_the_eager_one(
    name: str, tmp_path: Path, tiny_system: MakeConfig
) -> None:
    logged: dict[str, list[dict[str, float]]] = {}
    states = []
    for word in ("never", "always"):
        trainer = begun(tiny_system(name, {**LENGTH, "training.capture": word}), tmp_path / word)
        logged[word] = []
        for stage in range(len(trainer.stage_steps)):
            trainer.position.step = sum(trainer.stage_steps[:stage])
            first = next(trainer.batches())
            assert isinstance(trainer.step_fn, Captured) == (word == "always")
            for _ in range(3):
                terms = trainer.step(first).terms
                logged[word].append({key: float(value) for key, value in terms.items()})
        states.append(torch.cuda.get_rng_state())
    assert torch.equal(*states)  # the same draws, captured or not
    for ours, theirs in zip(logged["always"], logged["never"], strict=True):
        assert ours == pytest.approx(theirs, rel=2e-2, abs=1e-4)


@pytest.mark.usefixtures("_repeatable")
def test_captured_steps_draw_the_random_numbers_of_the_eager_ones(tmp_path: Path, tiny_system: MakeConfig) -> None:
    states, codebooks = [], []
    for word in ("never", "always"):
        trainer = begun(on_gpu(tiny_system, word, RESTARTS), tmp_path / word)
        start = torch.cuda.get_rng_state()
        run_steps(trainer)
        states.append(torch.cuda.get_rng_state())
        codebooks.append(tokenizer_of(trainer).quantizer.codebook.detach().clone())
        assert not torch.equal(states[-1], start)
    assert torch.equal(*states)
    torch.testing.assert_close(*codebooks, rtol=0, atol=1e-3)


def test_recording_a_step_changes_no_state(tmp_path: Path, tiny_system: MakeConfig) -> None:
    trainer = begun(on_gpu(tiny_system, "always", {**RESTARTS, "training.ema": 0.9}), tmp_path / "run")
    for i, batch in enumerate(trainer.batches()):
        if i in (0, 3):  # a fresh optimizer; the short batch
            before = state_of(trainer)
            assert isinstance(trainer.step_fn, Captured)
            trainer.step_fn.record(batch, ((1.0,), trainer.phase))
            assert_equal(state_of(trainer), before)
            assert all(parameter.grad is None for parameter in tokenizer_of(trainer).parameters())
        trainer.step(batch)
        assert int(tokenizer_of(trainer).quantizer.step) == i + 1


@pytest.mark.parametrize("flip", [False, True])
def test_host_does_not_wait_for_the_device_between_two_logs(
    flip: bool, tmp_path: Path, tiny_system: MakeConfig
) -> None:
    changes = {"training.steps": 24, "training.schedule": "cosine", "data.flip": flip, **RESTARTS}
    trainer = begun(on_gpu(tiny_system, "always", changes), tmp_path / "run")
    try:
        for i, batch in enumerate(trainer.batches()):
            trainer.step(batch)
            if i == 4:  # both graphs are recorded; the epochs that follow begin and end under watch
                torch.cuda.set_sync_debug_mode("error")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert int(tokenizer_of(trainer).quantizer.step) == 24


@pytest.mark.usefixtures("_repeatable")
def test_captured_run_logs_the_lines_of_the_eager_one(tmp_path: Path, tiny_system: MakeConfig) -> None:
    changes = {"training.warmup_steps": 4, "training.log_every": 3}
    for word in ("never", "always"):
        train(on_gpu(tiny_system, word, changes), tmp_path / word, quiet=True)
    eager, captured = (read_lines(tmp_path / word) for word in ("never", "always"))
    assert len(captured) == len(eager)
    for ours, theirs in zip(captured, eager):
        for name in ("kind", "step", "epoch", "learning_rate", "ball_radius", "arc_weight"):
            assert ours.get(name) == theirs.get(name), name
        for name in ("loss", "reconstruction", "mse", "psnr"):
            assert ours.get(name, 0.0) == pytest.approx(theirs.get(name, 0.0), rel=1e-3), name


def change_capture(run: Path, word: str) -> None:
    config = run / "config.yaml"
    text = config.read_text()
    assert text.count("capture: ") == 1
    config.write_text(text.replace("capture: always", f"capture: {word}").replace("capture: never", f"capture: {word}"))


@pytest.mark.usefixtures("_repeatable")
@pytest.mark.parametrize(
    ("first", "then"), [("always", "always"), ("always", "never"), ("never", "always")], ids=lambda word: str(word)
)
def test_run_resumes_captured_or_not(first: str, then: str, tmp_path: Path, tiny_system: MakeConfig) -> None:
    changes = {**RESTARTS, "training.schedule": "cosine"}
    train(on_gpu(tiny_system, "always", changes), tmp_path / "whole", quiet=True)
    with pytest.raises(Stopped):
        train(on_gpu(tiny_system, first, changes), tmp_path / "run", quiet=True, stop_after=6)
    change_capture(tmp_path / "run", then)
    train(on_gpu(tiny_system, then, changes), tmp_path / "run", quiet=True)
    assert read_losses(tmp_path / "run") == pytest.approx(read_losses(tmp_path / "whole"), rel=1e-3)
    files = [last_checkpoint(tmp_path / name) for name in ("run", "whole")]
    models, optimizers, randoms = (
        [load_file(file / f"{name}.safetensors") for file in files] for name in CHECKPOINT_FILES
    )
    assert_close_weights(*models)
    assert optimizers[0].keys() == optimizers[1].keys()
    assert {float(value) for name, value in optimizers[0].items() if name.endswith(".step")} == {10.0}
    assert_equal(*randoms)


@pytest.mark.usefixtures("_repeatable")
def test_each_stage_captures_its_own_step(tmp_path: Path, tiny_system: MakeConfig) -> None:
    stages = (
        "[{train: [autoencoder.encoder, quantizer], steps: 5}, "
        "{train: [autoencoder.decoder], steps: 5, learning_rate: 0.0078125}]"
    )
    changes = {**RESTARTS, "training.steps": None, "training.stages": stages}
    for word in ("never", "always"):
        with pytest.raises(Stopped):
            train(on_gpu(tiny_system, word, changes), tmp_path / word, quiet=True, stop_after=5)
        train(on_gpu(tiny_system, word, changes), tmp_path / word, quiet=True)
    # Not interrupted: when the second stage begins, the graphs of the first are there.
    train(on_gpu(tiny_system, "always", changes), tmp_path / "whole", quiet=True)
    first, last = (
        load_file(tmp_path / "always" / file)
        for file in ("checkpoints/step-00000005/tokenizer.safetensors", "model/model.safetensors")
    )
    changed = {name for name in first if not torch.equal(first[name], last[name])}
    assert all(name.startswith(("autoencoder.decoder", "quantizer")) for name in changed)
    assert any(name.startswith("autoencoder.decoder") for name in changed)
    assert torch.equal(first["quantizer.codebook"], last["quantizer.codebook"])
    assert int(last["quantizer.step"]) == 10
    for word in ("always", "whole"):
        assert read_losses(tmp_path / word) == pytest.approx(read_losses(tmp_path / "never"), rel=1e-3)
        assert_close_weights(
            load_file(tmp_path / word / "model" / "model.safetensors"),
            load_file(tmp_path / "never" / "model" / "model.safetensors"),
        )


@pytest.mark.usefixtures("_repeatable")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_compiled_step_is_captured_too(precision: str, tmp_path: Path, tiny_system: MakeConfig) -> None:
    for word, compiled in (("never", "false"), ("always", "true")):
        changes = {"training.precision": precision, "training.compile": compiled}
        train(on_gpu(tiny_system, word, changes), tmp_path / word, quiet=True)
    tolerance = 1e-2 if precision == "fp32" else 3e-2  # fused kernels round elsewhere
    assert read_losses(tmp_path / "always") == pytest.approx(read_losses(tmp_path / "never"), rel=tolerance)


def test_auto_captures_and_a_failed_capture_is_one_line(
    tmp_path: Path, tiny_system: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(begun(on_gpu(tiny_system, "auto"), tmp_path / "auto").step_fn, Captured)
    update = VQ._update

    def reading(self: VQ, inputs: Any) -> None:
        update(self, inputs)
        self.step.item()

    monkeypatch.setattr(VQ, "_update", reading)
    with pytest.raises(ArcvqError, match=r"^the step cannot be captured as a CUDA graph \(.*\): set training\.capture"):
        train(on_gpu(tiny_system, "always"), tmp_path / "run", quiet=True)
