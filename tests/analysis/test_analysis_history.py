"""Reading run folders, whole and damaged."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from arcvq.analysis import RunHistory
from arcvq.analysis.snapshot import evenly_spaced
from arcvq.errors import ArcvqError


@pytest.fixture
def folder(collapsed: RunHistory, tmp_path: Path) -> Path:
    """A copy of the collapsed run that a test may damage."""
    return Path(shutil.copytree(collapsed.path, tmp_path / "run"))


def test_load_reads_written_run(collapsed: RunHistory) -> None:
    assert (collapsed.name, collapsed.system) == ("vq-vae", "vq-vae")
    assert collapsed.config["quantizer"]["codebook_size"] == 96
    assert len(collapsed.train) == 400
    assert collapsed.evaluation_series("usage").steps.tolist() == [0, 1, 4, 16, 40, 100, 200, 400]
    assert [snapshot.step for snapshot in collapsed.snapshots] == [0, 1, 4, 16, 40, 100, 200, 400]
    assert collapsed.last_snapshot.used_count == 9
    assert collapsed.last_snapshot.codebook.shape == (96, 8)
    assert collapsed.last_step == 400
    result = collapsed.results["exact"]
    assert result.metrics["psnr"] == 22.1
    assert result.missing == {"rfid": "the Inception weights are not on this machine"}
    assert (result.protocol_hash, result.images) == ("abc123def456", 512)


def test_load_accepts_name(collapsed: RunHistory) -> None:
    assert RunHistory.load(collapsed.path, name="seed 2").name == "seed 2"


def test_early_snapshot_is_within_the_first_tenth(collapsed: RunHistory) -> None:
    assert collapsed.early_snapshot.step == 40


def test_early_snapshot_is_start_without_others(folder: Path) -> None:
    for path in (folder / "codebooks").glob("step-*.safetensors"):
        if "00000000" not in path.name:
            path.unlink()
    assert RunHistory.load(folder).early_snapshot.step == 0


def test_ball_radius_is_nearest_logged_value(collapsed: RunHistory, healthy: RunHistory) -> None:
    assert collapsed.ball_radius_at(400) is None
    assert healthy.ball_radius_at(0) == pytest.approx(np.exp(3e-4))
    assert healthy.ball_radius_at(400) == pytest.approx(np.exp(0.12))


def test_perplexity_of_even_use_is_number_of_used_codes(folder: Path) -> None:
    path = folder / "codebooks" / "step-00000400.safetensors"
    save_file({"codebook": torch.randn(5, 2), "counts": torch.tensor([7, 7, 0, 7, 7])}, path)
    assert RunHistory.load(folder).last_snapshot.perplexity == pytest.approx(4.0)


def test_snapshots_are_read_on_first_use(folder: Path) -> None:
    (folder / "codebooks" / "step-00000016.safetensors").write_bytes(b"torn")
    history = RunHistory.load(folder)
    assert history.last_snapshot.size == 96
    with pytest.raises(ArcvqError, match=r"step-00000016\.safetensors: "):
        _ = history.snapshots[3].counts


@pytest.mark.parametrize(
    "tensors",
    [
        {"codebook": torch.zeros(4, 2)},
        {"codebook": torch.zeros(4), "counts": torch.zeros(4, dtype=torch.int64)},
        {"codebook": torch.zeros(4, 2), "counts": torch.zeros(3, dtype=torch.int64)},
        {"codebook": torch.zeros(2, 2), "counts": torch.tensor([1, -1])},
        {"codebook": torch.zeros(2, 2), "counts": torch.zeros(2)},
        {"codebook": torch.zeros(0, 2), "counts": torch.zeros(0, dtype=torch.int64)},
    ],
)
def test_wrong_snapshot_raises_with_file_name(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors, folder / "codebooks" / "step-00000400.safetensors")
    with pytest.raises(ArcvqError, match=r"step-00000400\.safetensors: "):
        _ = RunHistory.load(folder).last_snapshot.codebook


def test_missing_folder_raises(tmp_path: Path) -> None:
    with pytest.raises(ArcvqError, match="nowhere: not a run"):
        RunHistory.load(tmp_path / "nowhere")


@pytest.mark.parametrize("needed", ["config.yaml", "metrics.jsonl"])
def test_folder_without_run_files_raises(folder: Path, needed: str) -> None:
    (folder / needed).unlink()
    with pytest.raises(ArcvqError, match=f"not a run, {needed}"):
        RunHistory.load(folder)


@pytest.mark.parametrize("text", ["a: [1", "- 1", "data: {}"])
def test_wrong_config_raises_with_file_name(folder: Path, text: str) -> None:
    (folder / "config.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ArcvqError, match=r"config\.yaml: "):
        RunHistory.load(folder)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"kind": "train", "st', "`kind`"),
        ("[1, 2]", "`kind`"),
        ('{"step": 3}', "`kind`"),
        ('{"kind": "train", "step": "3"}', "`step`"),
        ('{"kind": "train", "step": -1}', "`step`"),
    ],
)
def test_corrupt_line_raises_with_file_and_number(folder: Path, line: str, expected: str) -> None:
    path = folder / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([*lines[:2], line, *lines[2:]]) + "\n", encoding="utf-8")
    with pytest.raises(ArcvqError, match=rf"metrics\.jsonl:3: .*{expected}"):
        RunHistory.load(folder)


def test_unfinished_last_line_is_skipped(folder: Path) -> None:
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"kind": "train", "st')
    assert len(RunHistory.load(folder).train) == 400


def test_binary_metrics_file_raises(folder: Path) -> None:
    (folder / "metrics.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ArcvqError, match="not readable as text"):
        RunHistory.load(folder)


def test_blank_lines_and_unknown_kinds_are_skipped(folder: Path) -> None:
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('\n{"kind": "resumed", "step": 400}\n')
    assert len(RunHistory.load(folder).train) == 400


def test_run_without_snapshots_has_no_codebook(folder: Path) -> None:
    shutil.rmtree(folder / "codebooks")
    run = RunHistory.load(folder)
    assert not run.has_codebook
    assert run.last_step == 400


def test_run_is_finished_with_training_json(folder: Path) -> None:
    assert RunHistory.load(folder).finished
    (folder / "training.json").unlink()
    assert not RunHistory.load(folder).finished


@pytest.mark.parametrize("text", ["{", "[]", '{"metrics": {}}'])
def test_wrong_evaluation_file_raises_with_file_name(folder: Path, text: str) -> None:
    (folder / "evaluation-exact.json").write_text(text, encoding="utf-8")
    with pytest.raises(ArcvqError, match=r"evaluation-exact\.json: "):
        RunHistory.load(folder)


def test_nonfinite_metric_is_missing(folder: Path) -> None:
    content = {"metrics": {"psnr": float("nan"), "l1": 0.1}, "missing": {}, "protocol": "exact"}
    (folder / "evaluation-exact.json").write_text(json.dumps(content), encoding="utf-8")
    result = RunHistory.load(folder).results["exact"]
    assert dict(result.metrics) == {"l1": 0.1}
    assert result.missing == {"psnr": "measured as nan"}


def test_evenly_spaced_keeps_both_ends() -> None:
    assert evenly_spaced(np.arange(10), 4).tolist() == [0, 3, 6, 9]
    assert evenly_spaced(np.arange(3), 4).tolist() == [0, 1, 2]
