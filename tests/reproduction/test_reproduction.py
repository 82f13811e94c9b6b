"""The list of runs, the loop over it, and the CSV of results."""

import csv
import io
from pathlib import Path

import pytest

from reproduction.__main__ import main
from reproduction.rows import csv_text
from reproduction.runs import choose

RESULTS = Path(__file__).resolve().parents[2] / "results"
SHORT = ["--training.epochs=null", "--training.steps=3", "--training.evaluations=1", "--training.device=cpu"]
WORDS = ["run", "table1", "--data", "sample", "--only", "vq-vae", "--seeds", "1"]


def test_a_trial_run_is_made_once_and_other_settings_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--out", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    assert main([*WORDS, *places, "--list", *SHORT]) == 0
    assert "sample/vq-vae-seed1: missing" in capsys.readouterr().out
    assert main([*WORDS, *places, *SHORT]) == 0
    assert (tmp_path / "results/sample/vq-vae-seed1.json").is_file()
    capsys.readouterr()
    assert main([*WORDS, *places, *SHORT]) == 0
    assert "1 of 1 were there" in capsys.readouterr().out
    assert main([*WORDS, *places, *SHORT, "--training.learning_rate=0.5"]) == 2
    assert "other settings" in capsys.readouterr().err


def test_every_result_is_a_row() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(RESULTS))))
    found = {f"{row['data']}/{row['name']}-seed{row['seed']}" for row in rows}
    assert found == {f"{path.parent.name}/{path.stem}" for path in RESULTS.glob("*/*.json")}


def test_every_run_of_the_list_loads() -> None:
    """One seed of each: the seed changes nothing else."""
    runs = choose("all", seeds=[1])
    assert len(runs) > 250
    assert all(run.system().name == run.name for run in runs)


def test_table1_has_five_systems_three_seeds_and_two_data_sets() -> None:
    assert len(choose("table1")) == 30


def test_the_csv_is_up_to_date() -> None:
    assert main(["tables", "--check", "--results", str(RESULTS)]) == 0
