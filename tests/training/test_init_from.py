"""A training that starts from another one's weights."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from run_records import assert_same_run, assert_same_tensors, read_lines
from safetensors.torch import load_file
from test_resume import stop_at

from arcvq import ArcvqError
from arcvq.systems import TokenizerConfig, train
from arcvq.training import RunFolder

MakeConfig = Callable[..., TokenizerConfig]


@pytest.fixture
def source(trained_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained_run, tmp_path / "source"))


@pytest.mark.parametrize("part", ["", "model"])
@pytest.mark.parametrize("start", ["unit-sphere", "kmeans"])
def test_first_step_finds_the_weights_and_codes_of_the_source(
    part: str, start: str, source: Path, tmp_path: Path, tiny_system: MakeConfig
) -> None:
    """With a learning rate so small that nothing moves."""
    changes = {
        "training.init_from": source / part,
        "training.learning_rate": 1e-30,
        "quantizer.init": start,
        "quantizer.ball": None,
    }
    train(tiny_system(changes=changes), tmp_path / "run", quiet=True)
    trained, before = (load_file(run / "model" / "model.safetensors") for run in (tmp_path / "run", source))
    assert int(trained.pop("quantizer.step")) == 6
    for name in trained.keys() & before.keys():
        assert torch.equal(trained[name], before[name]), name
    last, first = (read_lines(run)[i] for run, i in ((source, -1), (tmp_path / "run", 0)))
    assert first["step"] == 0
    assert first["psnr"] == pytest.approx(last["psnr"])


def test_schedules_begin_anew(source: Path, tmp_path: Path, tiny_system: MakeConfig) -> None:
    train(tiny_system(changes={"training.init_from": source}), tmp_path / "run", quiet=True)
    for key in ("ball_radius", "arc_weight", "learning_rate", "epoch"):
        curves = [
            [line[key] for line in read_lines(run) if line["kind"] == "train"] for run in (source, tmp_path / "run")
        ]
        assert curves[0] == curves[1]


def test_resume_and_extension_do_without_the_source(source: Path, tmp_path: Path, tiny_system: MakeConfig) -> None:
    config = tiny_system(changes={"training.init_from": source})
    train(config, tmp_path / "whole", quiet=True)
    stop_at(config, tmp_path / "run", 2)
    shutil.rmtree(source)
    train(config, tmp_path / "run", quiet=True)
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    train(tiny_system(changes={"training.init_from": source, "training.steps": 8}), tmp_path / "run", quiet=True)
    assert RunFolder(tmp_path / "run").finished_steps() == 8


def test_resume_with_another_source_is_refused(source: Path, tmp_path: Path, tiny_system: MakeConfig) -> None:
    stop_at(tiny_system(changes={"training.init_from": source}), tmp_path / "run", 2)
    for other in (None, "elsewhere"):
        with pytest.raises(ArcvqError, match=r"training\.init_from is .*source there and"):
            train(tiny_system(changes={"training.init_from": other}), tmp_path / "run", quiet=True)


def test_another_system_of_the_same_shapes_can_start_from_it(
    source: Path, tmp_path: Path, tiny_system: MakeConfig
) -> None:
    config = tiny_system("vq-vae", {"training.init_from": source})
    stop_at(config, tmp_path / "run", 1)
    codebook = load_file(tmp_path / "run" / "codebooks" / "step-00000000.safetensors")["codebook"]
    assert torch.equal(codebook, load_file(source / "model" / "model.safetensors")["quantizer.codebook"])


@pytest.mark.parametrize(
    ("preset", "changes", "message"),
    [
        (
            "arcvq-vae",
            {"quantizer.codebook_size": 64},
            r"quantizer\.codebook has the shape \(32, 8\) there and \(64, 8\) here",
        ),
        ("arcvq-vae", {"autoencoder.width": 8}, "has the shape"),
        ("vq-vae-ema", {}, "only here is a quantizer"),
        ("vae", {}, "does not fit"),
    ],
)
def test_source_that_does_not_fit_is_one_line_and_leaves_no_run(
    preset: str, changes: dict[str, Any], message: str, source: Path, tmp_path: Path, tiny_system: MakeConfig
) -> None:
    with pytest.raises(ArcvqError, match=message) as raised:
        train(tiny_system(preset, {**changes, "training.init_from": source}), tmp_path / "run", quiet=True)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_source_that_is_not_there_is_named(tmp_path: Path, tiny_system: MakeConfig) -> None:
    with pytest.raises(ArcvqError, match="nowhere: no such run or model"):
        train(tiny_system(changes={"training.init_from": tmp_path / "nowhere"}), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_source_is_not_changed(source: Path, trained_run: Path, tmp_path: Path, tiny_system: MakeConfig) -> None:
    train(tiny_system(changes={"training.init_from": source}), tmp_path / "run", quiet=True)
    assert_same_tensors(source / "model" / "model.safetensors", trained_run / "model" / "model.safetensors")
