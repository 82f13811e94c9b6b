"""Selecting, training and measuring the runs of the tables."""

from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytest

from arcvq.errors import ArcvqError, Stopped
from arcvq.storage import read_json
from reproduction.__main__ import main
from reproduction.runs import select_runs

SHORT = ["--training.steps=2", "--training.evaluations=1", "--training.device=cpu", "--data.batch_size=32"]
SHORT += ["--training.evaluation_images=50", "--data.limit=200", "--limit=50"]
WORDS = ["run", "table1", "--data", "sample", "--only", "vq-vae", "--seeds", "1"]


def test_trial_run_is_made_once_and_shown_in_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = ["--out", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    assert main([*WORDS, *places, "--list", *SHORT]) == 0
    assert "sample/vq-vae-seed1: missing" in capsys.readouterr().out
    assert not (tmp_path / "results").exists()

    assert main([*WORDS, *places, *SHORT]) == 0
    result = tmp_path / "results/sample/vq-vae-seed1.json"
    assert result.is_file()
    assert result.with_name("vq-vae-seed1.metrics.jsonl").read_text().count('"kind": "eval"') >= 2

    assert main(["tables", "--results", str(tmp_path / "results")]) == 0
    assert "| sample | VQ-VAE | exact | 1 |" in (tmp_path / "results/RESULTS.md").read_text()
    assert (tmp_path / "results/runs.csv").is_file()
    assert main(["tables", "--check", "--results", str(tmp_path / "results")]) == 0

    capsys.readouterr()
    assert main([*WORDS, *places, *SHORT]) == 0
    assert "1 of 1 runs" in capsys.readouterr().out
    assert main([*WORDS, *places, *SHORT, "--training.learning_rate=0.5"]) == 2
    assert "training.learning_rate" in capsys.readouterr().err


def test_stopped_training_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(config: object, out: Path, quiet: bool) -> None:
        raise Stopped(f"{out}: stopped at step 1", SIGTERM)

    monkeypatch.setattr("reproduction.runs.train", stop)
    assert main([*WORDS, "--out", str(tmp_path), "--results", str(tmp_path / "results")]) == 128 + SIGTERM
    assert capsys.readouterr().err == f"reproduction: {tmp_path}/sample/vq-vae-seed1: stopped at step 1\n"


def test_diverged_training_gives_result(tmp_path: Path) -> None:
    places = ["--out", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    exploding = [*SHORT, "--training.learning_rate=1e30"]
    assert main([*WORDS, *places, *exploding, "--training.steps=6"]) == 0
    document = read_json(tmp_path / "results/sample/vq-vae-seed1.json", "a result")
    assert document["diverged"]
    assert document["protocols"] == {}
    assert main(["tables", "--results", str(tmp_path / "results")]) == 0
    assert "diverged" in (tmp_path / "results/RESULTS.md").read_text()


def test_every_run_of_list_loads() -> None:
    """One seed of each run is enough: seeds differ in nothing else."""
    every = select_runs("all", seeds=[1])
    assert len(every) > 250
    assert all(run.config(Path("runs")).name == run.name for run in every)


def test_table1_has_thirty_runs() -> None:
    assert len(select_runs("table1")) == 30


@pytest.mark.parametrize(
    ("chosen", "fact"),
    [
        ({"table": "tabel1"}, "table1"),
        ({"table": "table1", "only": ["vqvae"]}, "vq-vae"),
        ({"table": "table1", "suffix": "../up"}, "--suffix"),
        ({"table": "table1", "settings": ["--training.seed=7"]}, "--seeds"),
    ],
)
def test_wrong_selection_raises(chosen: dict[str, Any], fact: str) -> None:
    with pytest.raises(ArcvqError, match=fact):
        select_runs(**chosen)
