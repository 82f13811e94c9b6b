"""Reports of finished and unfinished runs of every kind of system."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arcvq.errors import ArcvqError, Stopped
from arcvq.report import make_report
from arcvq.systems import train


@pytest.fixture
def run(trained_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained_run, tmp_path / "run"))


@pytest.fixture(autouse=True)
def quick_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the drawing, for tests of the page's text."""
    monkeypatch.setattr("arcvq.analysis.figures.embedding.MAP_LIMIT", 9)
    monkeypatch.setattr("arcvq.analysis.page.render_png", lambda figure, resolution: b"a figure")


def test_finished_run_has_reconstructions_and_findings(run: Path, tmp_path: Path) -> None:
    report = make_report([run], tmp_path / "page")
    page = report.page.read_text()
    assert 'id="reconstructions"' in page
    found = json.loads(json.dumps(report.to_json()))
    assert found["report"] == str(tmp_path / "page" / "index.html")
    assert found["runs"]["run"]["step"] == 6
    assert all(
        finding.keys() == {"symptom", "severity", "evidence", "remedy"} for finding in found["runs"]["run"]["findings"]
    )


def test_stopped_run_is_reported_from_checkpoint(tiny_system: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        train(tiny_system(), tmp_path / "half", stop_after=3, quiet=True)
    page = make_report([tmp_path / "half"], tmp_path / "page").page.read_text()
    assert 'id="reconstructions"' in page  # from the weights of the checkpoint
    assert "3, unfinished" in page


def test_run_without_weights_has_note(run: Path, tmp_path: Path) -> None:
    shutil.rmtree(run / "model")
    shutil.rmtree(run / "checkpoints")
    page = make_report([run], tmp_path / "page").page.read_text()
    assert 'id="reconstructions"' not in page
    assert "run has no reconstructions" in page


def test_continuous_and_discrete_runs_share_a_page(run: Path, tiny_system: Callable[..., Any], tmp_path: Path) -> None:
    train(tiny_system("vae"), tmp_path / "vae", quiet=True)
    page = make_report([tmp_path / "vae", run], tmp_path / "page").page.read_text()
    assert "vae has no codebook" in page
    assert 'id="distances"' in page


def test_runs_of_equal_names_are_named_by_paths(run: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other" / "run"))
    report = make_report([run, other], tmp_path / "page")
    assert list(report.to_json()["runs"]) == [f"{tmp_path.name}/run", "other/run"]


def test_runs_of_different_data_raise(run: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    config = (other / "config.yaml").read_text()
    (other / "config.yaml").write_text(config.replace("name: sample\n", "name: mnist\n", 1))
    with pytest.raises(ArcvqError, match=r"different data.*run of sample, other of mnist"):
        make_report([run, other], tmp_path / "page")
    assert not (tmp_path / "page").exists()


def test_run_without_evaluation_raises(run: Path, tmp_path: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(line for line in lines if '"eval"' not in line))
    with pytest.raises(ArcvqError, match="run: has no evaluation"):
        make_report([run], tmp_path / "page")


def test_missing_test_images_have_note(run: Path, tmp_path: Path) -> None:
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("name: sample\n", "name: folder:/nowhere\n", 1))
    page = make_report([run], tmp_path / "page").page.read_text()
    assert 'id="reconstructions"' not in page
    assert "Some reconstructions are missing" in page
