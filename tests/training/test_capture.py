"""A captured step is the eager one, played otherwise; where it cannot be captured, one line says why."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from run_records import last_checkpoint, read_lines, read_losses
from safetensors.torch import load_file
from torch import Tensor

from arcvq import VQ, ArcvqError
from arcvq.data import InMemoryImages, batches, to_unit
from arcvq.systems import SYSTEMS, StageConfig, System, TrainingConfig
from arcvq.training import Stopped, train
from arcvq.training.capture import Snapshot, captures
from arcvq.training.checkpoint import Position, load_checkpoint, random_state, save_checkpoint
from arcvq.training.loop import TrainingRun
from arcvq.training.optimization import make_optimizer, set_learning_rate
from arcvq.training.step import Outcome

MakeSystem = Callable[..., System]
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

# Four batches an epoch, the last a short one; a rate that float32 holds exactly, as the captured optimizer does.
LENGTH: dict[str, Any] = {"data.limit": 56, "training.steps": 10, "training.learning_rate": 2**-10}
RESTARTS = {"quantizer.restart": "{decay: 0.5, threshold: 0.9}"}


class OnDevice(InMemoryImages):
    """Says that it is on a GPU."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda")


def some_images(kind: type[InMemoryImages] = OnDevice) -> InMemoryImages:
    return kind("some", torch.zeros(2, 1, 4, 4, dtype=torch.uint8))


def state_of(run: TrainingRun) -> dict[str, Tensor]:
    """All that a step changes, by name; without the optimizer's zeros, which a fresh one does not have yet."""
    found = {name: value.clone() for name, value in run.tokenizer.state_dict().items()}
    for i, entries in enumerate(run.optimizer.state.values()):
        found |= {f"{i}.{name}": value.clone() for name, value in entries.items() if value.any()}
    return found | random_state()


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


@dataclass
class Graphs:
    replayed: int = 0


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    """Counts the CUDA graphs that are launched."""
    counted, replay = Graphs(), torch.cuda.CUDAGraph.replay

    def count(graph: torch.cuda.CUDAGraph) -> None:
        counted.replayed += 1
        replay(graph)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", count)
    return counted


def begun(system: System, folder: Path) -> TrainingRun:
    run = TrainingRun(system, folder, quiet=True)
    run.begin_stage()
    return run


# ---- on any machine -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "facts", "why"),
    [
        ({}, {"device": "cpu"}, "cpu"),
        ({}, {"processes": 2}, "2 processes"),
        ({"accumulate": 3}, {}, "training.accumulate is 3"),
        ({"precision": "fp16"}, {}, "training.precision is fp16"),
        ({}, {"images": some_images(InMemoryImages)}, "the images of some"),
        ({}, {"quantizer": type("Reader", (VQ,), {"capturable": False})(4, 8)}, "Reader"),
    ],
)
def test_what_cannot_be_captured_is_not_and_always_says_why(
    changes: dict[str, Any], facts: dict[str, Any], why: str
) -> None:
    known = {"device": "cuda", "processes": 1, "images": some_images(), "quantizer": VQ(4, 8), **facts}
    known["device"] = torch.device(known["device"])
    for word in ("auto", "never"):
        assert not captures(TrainingConfig(steps=1, capture=word, **changes), **known)
    with pytest.raises(ArcvqError) as raised:
        captures(TrainingConfig(steps=1, capture="always", **changes), **known)
    assert why in str(raised.value)
    assert "auto" in str(raised.value)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_can_be_captured_is_unless_it_may_not(precision: Any) -> None:
    facts: dict[str, Any] = {"device": torch.device("cuda"), "processes": 1, "images": some_images()}
    for word, expected in (("auto", True), ("always", True), ("never", False)):
        training = TrainingConfig(steps=1, capture=word, precision=precision)  # type: ignore[arg-type]
        assert captures(training, quantizer=VQ(4, 8), **facts) is expected


def test_a_cpu_refuses_before_it_writes(tmp_path: Path, tiny_system: MakeSystem) -> None:
    system = tiny_system(changes={"training.capture": "always", "training.device": "cpu"})
    with pytest.raises(ArcvqError, match="CUDA device"):
        train(system, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_batches_are_handed_out_as_indices_of_the_same_images(tmp_path: Path, tiny_system: MakeSystem) -> None:
    run = TrainingRun(tiny_system(changes={**LENGTH, "training.steps": 8}), tmp_path / "run", quiet=True)
    handed = []
    for batch in run.stage_batches():
        assert batch.dtype == torch.int64
        handed.append(run.read(batch))
        run.position.stage_step += 1
    expected = [pixels for epoch in (0, 1) for pixels in batches(run.images, 16, seed=1, epoch=epoch)]
    assert [len(pixels) for pixels in handed] == [16, 16, 16, 8] * 2
    assert all(torch.equal(a, b) for a, b in zip(handed, expected, strict=True))


def test_the_step_is_the_loop_written_out(tmp_path: Path, tiny_system: MakeSystem) -> None:
    system = tiny_system(changes={**LENGTH, "training.gradient_clip": 0.5, "training.device": "cpu"})
    run, plain = begun(system, tmp_path / "run"), TrainingRun(system, tmp_path / "plain", quiet=True)
    model = plain.tokenizer
    optimizer = torch.optim.AdamW(model.parameters(), lr=2**-10, weight_decay=0.0, fused=True)
    for batch, _ in zip(run.stage_batches(), range(5)):
        outcome = run.step(batch)
        images = to_unit(plain.images.gather(batch))
        reconstruction, quantized = model(images)
        terms = {"reconstruction": plain.objective(reconstruction, images), **quantized.losses}
        torch.stack(list(terms.values())).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        model.quantizer.after_step(quantized)
        optimizer.zero_grad()
        assert_equal(outcome.terms, {name: term.detach() for name, term in terms.items()})
    assert not any(value.requires_grad for part in outcome for value in part.values())
    assert_equal(dict(run.tokenizer.state_dict()), dict(model.state_dict()))


@pytest.mark.parametrize("name", sorted(SYSTEMS))
def test_a_step_of_every_system_could_be_captured(
    name: str, tmp_path: Path, tiny_system: MakeSystem, as_if_captured: Any
) -> None:
    run = TrainingRun(tiny_system(name, {**LENGTH, "training.device": "cpu"}), tmp_path / "run", quiet=True)
    facts: dict[str, Any] = {"device": torch.device("cuda"), "processes": 1, "images": some_images()}
    assert captures(TrainingConfig(steps=1, capture="always"), quantizer=run.tokenizer.quantizer, **facts)
    for stage in range(len(run.stages)):
        run.position.stage = stage
        run.begin_stage()
        batch = next(run.stage_batches())
        before, snapshot = state_of(run), Snapshot([run.tokenizer], [run.optimizer])
        with as_if_captured():
            outcome = run.step(batch)
        assert all(torch.isfinite(value).all() for part in outcome for value in part.values())
        assert any(not torch.equal(value, before[key]) for key, value in run.tokenizer.state_dict().items())
        snapshot.restore()
        assert_equal(state_of(run), before)


def test_a_snapshot_puts_everything_back(tmp_path: Path, tiny_system: MakeSystem) -> None:
    system = tiny_system(changes={**LENGTH, **RESTARTS, "training.device": "cpu"})
    plain = begun(system, tmp_path / "plain")
    for batch, _ in zip(plain.stage_batches(), range(3)):
        plain.step(batch)
    expected = state_of(plain)
    run = begun(system, tmp_path / "run")
    for batch, _ in zip(run.stage_batches(), range(3)):  # with a fresh optimizer first, then with one that has a past
        before, addresses = state_of(run), [p.data_ptr() for p in run.tokenizer.parameters()]
        snapshot, position = Snapshot([run.tokenizer], [run.optimizer]), replace(run.position)
        for _ in range(3):
            run.step(batch)
        assert not torch.equal(state_of(run)["quantizer.codebook"], before["quantizer.codebook"])
        assert not torch.equal(state_of(run)["cpu"], before["cpu"])
        snapshot.restore()
        run.position = position
        assert_equal(state_of(run), before)
        assert [p.data_ptr() for p in run.tokenizer.parameters()] == addresses
        run.step(batch)
    assert_equal(state_of(run), expected)


@pytest.mark.parametrize("captured", [False, True])
def test_a_checkpoint_does_not_care_how_the_step_was_played(
    captured: bool, tmp_path: Path, tiny_system: MakeSystem
) -> None:
    training, stage = TrainingConfig(steps=1), StageConfig(steps=1, learning_rate=0.5)
    models = [tiny_system().build_tokenizer(1, (28, 28), 10) for _ in range(2)]
    models[1].to(memory_format=torch.channels_last)
    writer = make_optimizer(models[0], stage, training, captured=captured)
    reader = make_optimizer(models[1], stage, training, captured=not captured)
    for parameter in models[0].parameters():
        parameter.grad = torch.randn_like(parameter)
    writer.step()
    path = save_checkpoint(tmp_path, Position(), models[0], writer, None, [random_state()])
    assert json.loads((path / "state.json").read_text())["optimizer"]["param_groups"][0]["lr"] == 0.5
    rates = [group["lr"] for group in reader.param_groups]
    load_checkpoint(path, models[1], reader, 0)
    (group,) = reader.param_groups
    assert group["lr"] is rates[0]
    assert group["capturable"] is not captured
    for one, other in zip(models[0].parameters(), models[1].parameters()):
        assert_equal(writer.state[one], reader.state[other])
        assert reader.state[other]["exp_avg"].stride() == other.stride()
    set_learning_rate(reader, 0.25)
    assert float(group["lr"]) == 0.25
    assert isinstance(group["lr"], Tensor) is not captured


# ---- with a GPU ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def _repeatable() -> Iterator[None]:
    """Convolutions that add up in one order: what differs then is the playing."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cudnn.deterministic = before
    torch._dynamo.reset()


def on_gpu(tiny_system: MakeSystem, capture: str, changes: dict[str, Any] | None = None) -> System:
    return tiny_system(changes={**LENGTH, **(changes or {}), "training.capture": capture})


def play(run: TrainingRun) -> list[dict[str, float]]:
    """Every step of a stage, and what each told."""
    told = []
    for batch in run.stage_batches():
        outcome: Outcome = run.step(batch)
        told.append({name: float(value) for part in outcome for name, value in part.items()})
    return told


def assert_close_weights(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        difference = (value.double() - other[name].double()).abs()
        assert difference.mean() < 1e-4, f"{name}: mean {difference.mean():.1e}, largest {difference.max():.1e}"


@needs_cuda
@pytest.mark.usefixtures("_repeatable")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"training.precision": "bf16"},
        {"training.gradient_clip": 0.5, "training.schedule": "cosine", "training.warmup_steps": 5},
        {**RESTARTS, "quantizer.start": "kmeans", "quantizer.arc.schedule": "adaptive"},
        {"quantizer.entropy": "{weight: 0.1, temperature: 1.0}", "quantizer.heads": 2},
    ],
    ids=["plain", "bf16", "clip and schedule", "restarts", "entropy and heads"],
)
def test_a_hundred_replays_are_a_hundred_eager_steps(
    changes: dict[str, Any], tmp_path: Path, tiny_system: MakeSystem, graphs: Graphs
) -> None:
    runs, told = {}, {}
    for word in ("never", "always"):
        system = on_gpu(tiny_system, word, {**changes, "training.steps": 100})
        runs[word] = TrainingRun(system, tmp_path / word, quiet=True)
        runs[word].start_codebook()
        runs[word].begin_stage()
        told[word] = play(runs[word])
    eager, captured = runs["never"], runs["always"]
    assert graphs.replayed == 100
    quantizers = [run.tokenizer.quantizer for run in (eager, captured)]
    assert [int(quantizer.step) for quantizer in quantizers] == [100, 100]
    for name in ("ball_radius", "arc_weight") if "quantizer.restart" not in changes else ("ball_radius",):
        assert [line[name] for line in told["always"]] == [line[name] for line in told["never"]]
    samps = [quantizer.samp for quantizer in quantizers]  # type: ignore[union-attr]
    assert torch.equal(*(samp.radius(quantizer.step) for samp, quantizer in zip(samps, quantizers)))
    steps = {float(entries["step"]) for entries in captured.optimizer.state.values()}
    assert steps == {100.0}
    # Sums of k-means on a GPU differ in their last bits from run to run, and those decide which codes restart: such runs part
    # ways after their first step, as two eager ones do.
    drawn = "quantizer.restart" in changes
    for name in told["never"][0]:
        ours, theirs = ([line[name] for line in told[word][: 1 if drawn else 100]] for word in ("always", "never"))
        assert ours == pytest.approx(theirs, rel=0.02 if name in ("perplexity", "usage") else 1e-3, abs=1e-6), name
    if not drawn:
        assert_close_weights(captured.tokenizer.state_dict(), eager.tokenizer.state_dict())


@needs_cuda
@pytest.mark.usefixtures("_repeatable")
@pytest.mark.parametrize("name", sorted(SYSTEMS))
def test_every_system_is_captured_and_begins_as_the_eager_one(
    name: str, tmp_path: Path, tiny_system: MakeSystem, graphs: Graphs
) -> None:
    told, states = {}, []
    for word in ("never", "always"):
        changes = {**LENGTH, "training.capture": word}
        run = TrainingRun(tiny_system(name, changes), tmp_path / word, quiet=True)
        told[word] = []
        for stage in range(len(run.stages)):
            run.position.stage, run.position.stage_step = stage, 0
            run.begin_stage()
            first = next(run.stage_batches())
            for _ in range(3):
                terms = run.step(first).terms
                told[word].append({key: float(value) for key, value in terms.items()})
        assert graphs.replayed == (len(told[word]) if word == "always" else 0)
        states.append(torch.cuda.get_rng_state())
    assert torch.equal(*states)  # the same draws in both
    for ours, theirs in zip(told["always"], told["never"], strict=True):
        assert ours == pytest.approx(theirs, rel=2e-2, abs=1e-4)


@needs_cuda
@pytest.mark.usefixtures("_repeatable")
def test_the_random_numbers_are_those_of_the_eager_run(tmp_path: Path, tiny_system: MakeSystem) -> None:
    states, codebooks = [], []
    for word in ("never", "always"):
        run = begun(on_gpu(tiny_system, word, RESTARTS), tmp_path / word)
        start = torch.cuda.get_rng_state()
        play(run)
        states.append(torch.cuda.get_rng_state())
        codebooks.append(run.tokenizer.quantizer.codebook.detach().clone())
        assert not torch.equal(states[-1], start)
    assert torch.equal(*states)
    torch.testing.assert_close(*codebooks, rtol=0, atol=1e-3)


@needs_cuda
def test_a_captured_step_counts_once_and_leaves_no_gradient(tmp_path: Path, tiny_system: MakeSystem) -> None:
    """The first step and the first short batch warm up and record: that is undone."""
    run = begun(on_gpu(tiny_system, "always", RESTARTS), tmp_path / "run")
    for i, batch in enumerate(run.stage_batches()):
        run.step(batch)
        assert int(run.tokenizer.quantizer.step) == i + 1
        assert {float(entries["step"]) for entries in run.optimizer.state.values()} == {i + 1.0}
        assert all(parameter.grad is None for parameter in run.tokenizer.parameters())


@needs_cuda
def test_nothing_waits_for_the_device_between_two_logs(tmp_path: Path, tiny_system: MakeSystem) -> None:
    changes = {"training.steps": 24, "training.schedule": "cosine", **RESTARTS}
    run = begun(on_gpu(tiny_system, "always", changes), tmp_path / "run")
    try:
        for i, batch in enumerate(run.stage_batches()):
            run.step(batch)
            if i == 4:  # both graphs are recorded; the epochs that follow begin and end under watch
                torch.cuda.set_sync_debug_mode("error")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert int(run.tokenizer.quantizer.step) == 24


@needs_cuda
@pytest.mark.usefixtures("_repeatable")
def test_the_logged_lines_are_those_of_the_eager_run(tmp_path: Path, tiny_system: MakeSystem) -> None:
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


@needs_cuda
@pytest.mark.usefixtures("_repeatable")
@pytest.mark.parametrize(
    ("first", "then"), [("always", "always"), ("always", "never"), ("never", "always")], ids=lambda word: str(word)
)
def test_a_run_goes_on_captured_or_not(first: str, then: str, tmp_path: Path, tiny_system: MakeSystem) -> None:
    changes = {**RESTARTS, "training.schedule": "cosine"}
    train(on_gpu(tiny_system, "always", changes), tmp_path / "whole", quiet=True)
    with pytest.raises(Stopped):
        train(on_gpu(tiny_system, first, changes), tmp_path / "run", quiet=True, stop_after=6)
    change_capture(tmp_path / "run", then)
    train(on_gpu(tiny_system, then, changes), tmp_path / "run", quiet=True)
    assert read_losses(tmp_path / "run") == pytest.approx(read_losses(tmp_path / "whole"), rel=1e-3)
    files = [last_checkpoint(tmp_path / name) for name in ("run", "whole")]
    models, optimizers, randoms = (
        [load_file(file / f"{name}.safetensors") for file in files] for name in ("model", "optimizer", "random-0")
    )
    assert_close_weights(*models)
    assert optimizers[0].keys() == optimizers[1].keys()
    assert {float(value) for name, value in optimizers[0].items() if name.endswith(".step")} == {10.0}
    assert_equal(*randoms)


@needs_cuda
@pytest.mark.usefixtures("_repeatable")
def test_each_stage_records_its_own_step(tmp_path: Path, tiny_system: MakeSystem) -> None:
    stages = "[{train: [encoder, quantizer], steps: 5}, {train: [decoder], steps: 5, learning_rate: 0.0078125}]"
    changes = {**RESTARTS, "training.steps": None, "training.stages": stages}
    for word in ("never", "always"):
        with pytest.raises(Stopped):
            train(on_gpu(tiny_system, word, changes), tmp_path / word, quiet=True, stop_after=5)
        train(on_gpu(tiny_system, word, changes), tmp_path / word, quiet=True)
    # Never interrupted: the second stage finds the graphs of the first.
    train(on_gpu(tiny_system, "always", changes), tmp_path / "whole", quiet=True)
    first, last = (
        load_file(tmp_path / "always" / file)
        for file in ("checkpoints/step-00000005/model.safetensors", "model/model.safetensors")
    )
    assert {name.split(".")[0] for name in first if not torch.equal(first[name], last[name])} == {
        "decoder",
        "quantizer",
    }
    assert torch.equal(first["quantizer.codebook"], last["quantizer.codebook"])
    assert int(last["quantizer.step"]) == 10
    for word in ("always", "whole"):
        assert read_losses(tmp_path / word) == pytest.approx(read_losses(tmp_path / "never"), rel=1e-3)
        assert_close_weights(
            load_file(tmp_path / word / "model" / "model.safetensors"),
            load_file(tmp_path / "never" / "model" / "model.safetensors"),
        )


@needs_cuda
@pytest.mark.usefixtures("_repeatable")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_compiled_step_is_captured_too(precision: str, tmp_path: Path, tiny_system: MakeSystem) -> None:
    for word, compiled in (("never", "false"), ("always", "true")):
        changes = {"training.precision": precision, "training.compile": compiled}
        train(on_gpu(tiny_system, word, changes), tmp_path / word, quiet=True)
    tolerance = 1e-2 if precision == "fp32" else 3e-2  # fused kernels round elsewhere
    assert read_losses(tmp_path / "always") == pytest.approx(read_losses(tmp_path / "never"), rel=tolerance)


@needs_cuda
def test_auto_captures_and_a_failed_capture_is_one_line(
    tmp_path: Path, tiny_system: MakeSystem, monkeypatch: pytest.MonkeyPatch, graphs: Graphs
) -> None:
    auto = begun(on_gpu(tiny_system, "auto"), tmp_path / "auto")
    auto.step(next(auto.stage_batches()))
    assert graphs.replayed == 1
    upkeep = VQ.upkeep

    def reading(self: VQ, records: Any) -> None:
        upkeep(self, records)
        self.step.item()

    monkeypatch.setattr(VQ, "upkeep", reading)
    with pytest.raises(ArcvqError, match=r"training\.capture"):
        train(on_gpu(tiny_system, "always"), tmp_path / "run", quiet=True)
