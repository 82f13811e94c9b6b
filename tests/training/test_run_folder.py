"""What a training writes into its folder, and which folders it refuses."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from run_records import assert_nothing_half_written, read_lines
from safetensors.torch import load_file

from arcvq import ArcvqError, Tokenizer
from arcvq.config import to_dict
from arcvq.errors import Stopped
from arcvq.systems import SYSTEMS, TokenizerConfig, parse_config, read_run, train
from arcvq.training import RunFolder
from arcvq.training.plan import evaluation_steps

MakeConfig = Callable[..., TokenizerConfig]


def test_folder_of_a_finished_run_holds_these_files_and_no_more(trained_run: Path) -> None:
    assert sorted(path.name for path in trained_run.iterdir()) == [
        "checkpoints",
        "codebooks",
        "config.yaml",
        "lock",
        "metrics.jsonl",
        "model",
        "tensorboard",
        "training.json",
    ]
    assert sorted(path.name for path in (trained_run / "checkpoints").iterdir()) == ["step-00000003", "step-00000006"]
    assert_nothing_half_written(trained_run)


def test_config_yaml_has_every_setting_and_parses_back_to_the_same_configuration(
    trained_run: Path, tiny_system: MakeConfig
) -> None:
    written = yaml.safe_load((trained_run / "config.yaml").read_text())
    assert parse_config(written) == tiny_system()
    assert read_run(RunFolder(trained_run)) == tiny_system()
    assert written["quantizer"]["metric"] == "cosine"  # a default that the preset does not spell out
    assert written["training"]["betas"] == [0.9, 0.999]


@pytest.mark.parametrize("name", sorted(SYSTEMS))
def test_configuration_of_every_system_is_read_back_as_written(name: str, tmp_path: Path) -> None:
    stage = {"train": ["encoder"], "steps": 2}
    config = parse_config({"system": name, "training": {"stages": [stage]}})
    RunFolder(tmp_path / "run").open(to_dict(config))
    assert read_run(RunFolder(tmp_path / "run")) == config


def test_every_step_that_was_asked_for_is_logged_once_and_in_order(trained_run: Path) -> None:
    lines = read_lines(trained_run)
    assert [line["step"] for line in lines if line["kind"] == "train"] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in lines if line["kind"] == "eval"] == [0, 1, 2, 3, 6]
    assert [line["step"] for line in lines] == sorted(line["step"] for line in lines)


def test_every_line_of_metrics_has_the_seconds_so_far(trained_run: Path) -> None:
    seconds = [line["seconds"] for line in read_lines(trained_run)]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0
    assert seconds[-1] <= json.loads((trained_run / "training.json").read_text())["seconds"]


def test_training_line_has_every_term_and_they_add_up_to_the_loss(trained_run: Path) -> None:
    for line in read_lines(trained_run):
        if line["kind"] == "train":
            terms = [line[name] for name in ("reconstruction", "codebook", "commitment", "arc")]
            assert line["loss"] == pytest.approx(sum(terms), rel=1e-5)
            assert line["arc"] == pytest.approx(line["arc_weight"] * line["arc_loss"], rel=1e-5)
            assert line["epoch"] == line["step"] / 4
            assert line["learning_rate"] == 1e-3
            assert {"perplexity", "ball_radius", "samples_per_second"} <= line.keys()


def test_evaluation_line_describes_the_codebook(trained_run: Path) -> None:
    for line in read_lines(trained_run):
        if line["kind"] == "eval":
            assert {"l1", "mse", "psnr", "usage", "perplexity", "ball_radius"} <= line.keys()
            assert line["arc_weight"] == pytest.approx(math.exp(-5e-4 * line["step"]), rel=1e-6)
            assert len(line["norm_quantiles"]) == 5
            assert line["norm_quantiles"] == sorted(line["norm_quantiles"])
            assert 0 <= line["clipped_share"] <= 1
            assert line["norm_quantiles"][-1] <= line["ball_radius"] * (1 + 1e-5)


def test_codebook_is_saved_at_every_evaluation(trained_run: Path) -> None:
    files = sorted((trained_run / "codebooks").iterdir())
    assert [path.name for path in files] == [f"step-{step:08d}.safetensors" for step in (0, 1, 2, 3, 6)]
    for path in files:
        tensors = load_file(path)
        assert tensors["codebook"].shape == (32, 8)
        assert tensors["counts"].sum() == 32 * 49  # 32 evaluation images of 49 tokens
    last = Tokenizer.from_pretrained(trained_run).quantizer.codebook
    assert torch.equal(load_file(files[-1])["codebook"], last)


@pytest.mark.parametrize(
    ("total", "evaluations", "steps"),
    [
        (100, 2, {1, 2, 4, 8, 16, 32, 50, 100}),
        (100, 1, {1, 2, 4, 8, 16, 32, 64, 100}),
        (100, 0, {1, 2, 4, 8, 16, 32, 64, 100}),
        (4, 4, {1, 2, 3, 4}),
        (1, 20, {0, 1}),
    ],
)
def test_evaluations_are_log_spaced_until_they_are_even(total: int, evaluations: int, steps: set[int]) -> None:
    assert evaluation_steps(total, evaluations) == steps


def test_model_has_the_weights_of_the_last_checkpoint(trained_run: Path) -> None:
    checkpoint = load_file(trained_run / "checkpoints" / "step-00000006" / "tokenizer.safetensors")
    model = Tokenizer.from_pretrained(trained_run).state_dict()
    assert checkpoint.keys() == model.keys()
    assert all(torch.equal(tensor, model[name]) for name, tensor in checkpoint.items())
    assert int(model["quantizer.step"]) == 6


def test_training_json_says_how_long_it_took_and_on_what(trained_run: Path) -> None:
    record = json.loads((trained_run / "training.json").read_text())
    assert (record["steps"], record["processes"]) == (6, 1)
    assert record["seconds"] > 0
    assert "CPU" in record["device"]
    assert {"arcvq", "torch", "python"} <= record["versions"].keys()


def test_tensorboard_has_the_same_curve(trained_run: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(trained_run / "tensorboard"))
    events.Reload()
    losses = [line["loss"] for line in read_lines(trained_run) if line["kind"] == "train"]
    assert [event.value for event in events.Scalars("train/loss")] == pytest.approx(losses)


def test_finished_run_is_not_touched(trained_run: Path, tiny_system: MakeConfig) -> None:
    before = {path: path.stat().st_mtime_ns for path in trained_run.rglob("*")}
    assert train(tiny_system(), trained_run, quiet=True) == trained_run / "model"
    assert {path: path.stat().st_mtime_ns for path in trained_run.rglob("*")} == before


def test_finished_run_does_not_need_its_data(
    trained_run: Path, tiny_system: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TokenizerConfig, "load", None)
    assert Tokenizer.from_pretrained(train(tiny_system(), trained_run, quiet=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training.seed": 2}, "training.seed is 1 there and 2 here"),
        ({"quantizer.arc.scale": 20}, "quantizer.arc.scale is 10.0 there and 20.0 here"),
        ({"quantizer.ball": None}, "quantizer.ball is {'schedule': 'exponential'"),
        ({"training.steps": 7, "training.seed": 2}, "training.seed is 1 there and 2 here"),
        ({"training.steps": 5}, "6 steps there and 5 here, and a run cannot be made shorter"),
        ({"training.steps": None, "training.epochs": 1}, "6 steps there and 4 here, and a run cannot be made shorter"),
        ({"training.steps": None, "training.stages": "[{steps: 9}]"}, "training.stages is [] there and "),
    ],
)
def test_run_of_another_configuration_is_refused_with_the_difference(
    trained_run: Path, tiny_system: MakeConfig, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArcvqError) as raised:
        train(tiny_system(changes=changes), trained_run, quiet=True)
    assert str(raised.value).startswith(f"{trained_run}: ")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_folder_that_holds_something_else_is_refused_and_not_touched(tmp_path: Path, tiny_system: MakeConfig) -> None:
    (tmp_path / "thesis.tex").write_text("chapter 1")
    with pytest.raises(ArcvqError) as raised:
        train(tiny_system(), tmp_path, quiet=True)
    assert str(raised.value).startswith(f"{tmp_path}: exists and is not a run")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_folder_with_a_half_written_configuration_is_used(tmp_path: Path, tiny_system: MakeConfig) -> None:
    (tmp_path / ".config.yaml.12345.tmp").write_text("system: arc")
    assert RunFolder(tmp_path).open(to_dict(tiny_system()))


@pytest.mark.parametrize("content", ["system: vq-vae\ntraining: {steps: 0}\n", "system: [", "other: 1\n"])
def test_folder_with_a_damaged_configuration_is_refused(tmp_path: Path, tiny_system: MakeConfig, content: str) -> None:
    (tmp_path / "config.yaml").write_text(content)
    with pytest.raises(ArcvqError) as raised:
        train(tiny_system(), tmp_path, quiet=True)
    assert str(raised.value).startswith(str(tmp_path))
    assert "\n" not in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_empty_folder_is_used(tmp_path: Path, tiny_system: MakeConfig) -> None:
    train(tiny_system(changes={"training.steps": 1}), tmp_path, quiet=True)
    assert (tmp_path / "training.json").is_file()


def test_error_names_a_place_that_cannot_be_written(tmp_path: Path, tiny_system: MakeConfig) -> None:
    (tmp_path / "file").write_text("")
    for out, reason in ((tmp_path / "file", "exists and is not a run"), (tmp_path / "file" / "run", "Not a directory")):
        with pytest.raises(ArcvqError) as raised:
            train(tiny_system(), out, quiet=True)
        assert str(raised.value).startswith(f"{out}: ")
        assert reason in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_half_written_files_are_removed_and_other_hidden_files_are_not(tmp_path: Path, tiny_system: MakeConfig) -> None:
    config = tiny_system(changes={"training.steps": 1})
    run = tmp_path / "run"
    RunFolder(run).open(to_dict(config))
    for folder in (".model.abc", "checkpoints/.step-00000001.abc"):
        (run / folder).mkdir(parents=True)
        (run / folder / "model.safetensors").write_bytes(b"half")
    (run / ".metrics.jsonl.123.tmp").write_bytes(b"half")
    (run / ".gitignore").write_text("*")
    train(config, run, quiet=True)
    (run / ".gitignore").unlink()
    assert_nothing_half_written(run)


def test_a_second_training_into_the_same_folder_is_refused(tmp_path: Path, tiny_system: MakeConfig) -> None:
    config, run = tiny_system("vq-vae"), tmp_path / "run"
    with pytest.raises(Stopped):
        train(config, run, quiet=True, stop_after=2)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and "tensorboard" not in path.parts}
    with RunFolder(run).locked(), pytest.raises(ArcvqError, match="another training is writing here"):
        train(config, run, quiet=True)
    assert {path: path.read_bytes() for path in before} == before
    train(config, run, quiet=True)
    assert (run / "training.json").is_file()
