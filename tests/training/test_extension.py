"""A finished run that is trained for longer, from its last checkpoint."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_records import CHECKPOINT_FILES, assert_nothing_half_written, assert_same_tensors, last_checkpoint, read_lines
from test_resume import kill_at_call, killed_in_child, stop_at

from arcvq import ArcvqError, Tokenizer
from arcvq.systems import TokenizerConfig, read_run, train
from arcvq.training import RunFolder

MakeConfig = Callable[..., TokenizerConfig]

# Nothing in it depends on the length: so the extended run is the longer one, bit for bit.
PLAIN: dict[str, Any] = {"data.limit": 56, "quantizer.restart": "{decay: 0.5, threshold: 0.9}"}
LONG = {**PLAIN, "training.steps": 10}


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory, tiny_system: MakeConfig) -> Path:
    run = tmp_path_factory.mktemp("long") / "run"
    train(tiny_system("vq-vae", LONG), run, quiet=True)
    return run


@pytest.fixture(scope="module")
def short_run(tmp_path_factory: pytest.TempPathFactory, tiny_system: MakeConfig) -> Path:
    run = tmp_path_factory.mktemp("short") / "run"
    train(tiny_system("vq-vae", PLAIN), run, quiet=True)
    (run / "evaluation-exact.json").write_text("{}")
    return run


@pytest.fixture
def run(short_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(short_run, tmp_path / "run"))


def assert_extended(run: Path, long_run: Path) -> None:
    assert last_checkpoint(run).name == "step-00000010"
    for name in CHECKPOINT_FILES:
        file = f"checkpoints/step-00000010/{name}.safetensors"
        assert_same_tensors(run / file, long_run / file)
    assert_same_tensors(run / "model/model.safetensors", long_run / "model/model.safetensors")
    losses = [[line["loss"] for line in read_lines(each) if line["kind"] == "train"] for each in (run, long_run)]
    assert losses[0] == losses[1]
    assert read_run(RunFolder(run)) == read_run(RunFolder(long_run))
    assert json.loads((run / "training.json").read_text())["steps"] == 10
    assert not (run / "evaluation-exact.json").exists()  # it was of the shorter training's model
    assert_nothing_half_written(run)


@pytest.mark.parametrize("length", [{}, {"training.steps": None, "training.epochs": 2}], ids=["steps", "epochs"])
def test_finished_run_is_extended_to_the_longer_run(
    length: dict[str, Any], run: Path, long_run: Path, tiny_system: MakeConfig
) -> None:
    config = tiny_system("vq-vae", {**LONG, **length})
    train(config, run, quiet=True)
    if not length:
        assert_extended(run, long_run)
    assert read_run(RunFolder(run)) == config
    assert RunFolder(run).finished_steps() == (8 if length else 10)


def test_stopped_extension_goes_on(run: Path, long_run: Path, tiny_system: MakeConfig) -> None:
    config = tiny_system("vq-vae", LONG)
    stop_at(config, run, 8)
    assert not (run / "training.json").exists()
    assert Tokenizer.from_pretrained(run)  # the shorter training's model stays until it is replaced
    train(config, run, quiet=True)
    assert_extended(run, long_run)


@pytest.mark.parametrize("place", ["write_config", "remove_partial_writes"])
def test_extension_killed_at_its_beginning_goes_on(
    place: str, run: Path, long_run: Path, tiny_system: MakeConfig
) -> None:
    config = tiny_system("vq-vae", LONG)
    killed_in_child(config, run, kill_at_call(RunFolder, place, 1, before=False))
    train(config, run, quiet=True)
    assert_extended(run, long_run)


def test_unfinished_run_is_not_made_longer(tmp_path: Path, tiny_system: MakeConfig) -> None:
    stop_at(tiny_system("vq-vae", PLAIN), tmp_path / "run", 2)
    with pytest.raises(ArcvqError, match="only once it is finished"):
        train(tiny_system("vq-vae", LONG), tmp_path / "run", quiet=True)
    assert read_run(RunFolder(tmp_path / "run")) == tiny_system("vq-vae", PLAIN)


def test_run_without_checkpoints_is_not_extended(run: Path, tiny_system: MakeConfig) -> None:
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(ArcvqError, match="has no checkpoint to go on from"):
        train(tiny_system("vq-vae", LONG), run, quiet=True)
    assert RunFolder(run).finished_steps() == 6


def test_run_of_stages_is_not_extended(tmp_path: Path, tiny_system: MakeConfig) -> None:
    def staged(steps: int) -> TokenizerConfig:
        stages = f"[{{train: [autoencoder.encoder], steps: 1}}, {{steps: {steps}}}]"
        return tiny_system("vq-vae", {"training.steps": None, "training.stages": stages})

    train(staged(1), tmp_path / "run", quiet=True)
    with pytest.raises(ArcvqError, match=r"training\.stages is"):
        train(staged(2), tmp_path / "run", quiet=True)
    assert read_run(RunFolder(tmp_path / "run")) == staged(1)


SHARE, STEPS = {"continuous_first": 0.5}, {"continuous_first": 3}


def test_share_of_the_length_is_refused_with_the_steps_it_was(tmp_path: Path, tiny_system: MakeConfig) -> None:
    short = tiny_system("vq-vae", {**PLAIN, **SHARE})
    train(short, tmp_path / "run", quiet=True)
    with pytest.raises(ArcvqError, match=r"share of 6 steps.* --continuous_first 3$") as raised:
        train(tiny_system("vq-vae", {**LONG, **SHARE}), tmp_path / "run", quiet=True)
    assert "\n" not in str(raised.value)
    for changes, fact in [({"training.seed": 2}, "seed"), ({"training.steps": 5}, "made shorter")]:
        for start in (SHARE, STEPS):
            with pytest.raises(ArcvqError, match=fact):
                train(tiny_system("vq-vae", {**LONG, **start, **changes}), tmp_path / "run", quiet=True)
    assert read_run(RunFolder(tmp_path / "run")) == short
    train(tiny_system("vq-vae", {**LONG, **STEPS}), tmp_path / "run", quiet=True)
    train(tiny_system("vq-vae", {**LONG, **STEPS}), tmp_path / "long", quiet=True)
    assert_extended(tmp_path / "run", tmp_path / "long")


def test_beginnings_of_the_phases_are_kept(tmp_path: Path, tiny_system: MakeConfig) -> None:
    patch = "{discriminator: {kind: patch, layers: 1, width: 8, norm: group, groups: 4}, start: START}"

    def phases(continuous: float, start: float, steps: int) -> TokenizerConfig:
        settings = {"continuous_first": continuous, "adversarial": patch.replace("START", str(start))}
        return tiny_system("vq-vae", {"training.steps": steps, **settings})

    train(phases(0.25, 0.5, 4), tmp_path / "run", quiet=True)
    for wrong, fact in [
        (phases(0.25, 0.5, 8), r"steps, --continuous_first 1 --adversarial\.start 2$"),
        (phases(1, 0.5, 8), r"steps, --adversarial\.start 2$"),
        (phases(1, 0.5, 4), "continuous_first is 0.25 there"),
        (phases(1, 3, 8), r"adversarial\.start is 0.5 there and 3"),
    ]:
        with pytest.raises(ArcvqError, match=fact):
            train(wrong, tmp_path / "run", quiet=True)
        assert read_run(RunFolder(tmp_path / "run")) == phases(0.25, 0.5, 4)
    train(phases(1, 2, 8), tmp_path / "run", quiet=True)
    logged = [line for line in read_lines(tmp_path / "run") if line["kind"] == "train"]
    assert ["commitment" in line for line in logged] == [False] + [True] * 7
    assert ["adversarial" in line for line in logged] == [False] * 2 + [True] * 6


@pytest.mark.parametrize("content", ["{}", "[]", '{"steps": "6"}', "{"])
def test_damaged_record_of_a_finished_run_is_one_line(content: str, run: Path, tiny_system: MakeConfig) -> None:
    (run / "training.json").write_text(content)
    with pytest.raises(ArcvqError, match=r"training\.json") as raised:
        train(tiny_system("vq-vae", PLAIN), run, quiet=True)
    assert "\n" not in str(raised.value)
