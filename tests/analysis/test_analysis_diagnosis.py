"""The diagnosis finds each symptom, and only that, with its numbers."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save_file

from arcvq.analysis import Finding, RunHistory, diagnose
from arcvq.analysis.illustrations import distances_illustration
from arcvq.metrics import near_duplicate_shares

Writer = Callable[..., Path]


def findings_by_symptom(run: RunHistory) -> dict[str, Finding]:
    return {finding.symptom: finding for finding in diagnose(run)}


def with_changed_metrics(folder: Path, change: Callable[[dict[str, Any]], None]) -> RunHistory:
    """The run after `change` has edited every line of metrics.jsonl."""
    path = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        change(line)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return RunHistory.load(folder)


def with_last_snapshot(folder: Path, codebook: torch.Tensor, counts: torch.Tensor) -> RunHistory:
    save_file({"codebook": codebook, "counts": counts}, folder / "codebooks" / "step-00000400.safetensors")
    return RunHistory.load(folder)


def test_healthy_run_has_no_findings(healthy: RunHistory) -> None:
    assert diagnose(healthy) == []


def test_collapsed_run_has_findings_with_numbers(collapsed: RunHistory) -> None:
    found = findings_by_symptom(collapsed)
    assert found["dead codes"].severity == "critical"
    assert "87 of 96 codes (91%)" in found["dead codes"].evidence
    assert "ball bound and ArcLoss" in found["dead codes"].remedy
    assert "0.01 for unused" in found["norm imbalance"].evidence
    assert "87 of 96 codes" in found["near-duplicate codes"].evidence
    assert "400 steps" in found["short training"].evidence
    assert "ball bound never binds" not in found
    severities = [finding.severity for finding in diagnose(collapsed)]
    assert severities == sorted(severities, key=["critical", "warning", "note"].index)


def test_remedy_omits_prior_that_run_has(write_run_folder: Writer, tmp_path: Path) -> None:
    run = RunHistory.load(write_run_folder(tmp_path / "run", system="arcvq-vae", used=60, bounded=True))
    finding = findings_by_symptom(run)["dead codes"]
    assert finding.severity == "warning"
    assert "ArcLoss" not in finding.remedy


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (
            {"restart": None, "arc": None},
            "add the ball bound and ArcLoss, restart dead codes (quantizer.restart), or make the codebook smaller",
        ),
        ({"arc": None}, "add the ball bound and ArcLoss or make the codebook smaller"),
        ({"revival": {}}, "revive dead codes sooner (quantizer.revival) or make the codebook smaller"),
        ({"levels": [8, 8]}, "make the codebook smaller"),
    ],
    ids=["vq-vae", "sq-vae", "hvq-vae", "fsq"],
)
def test_remedy_lists_only_supported_options(
    options: dict[str, Any], remedy: str, write_run_folder: Writer, tmp_path: Path
) -> None:
    folder = write_run_folder(tmp_path / "run", system="vq-vae", used=9)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump(config | {"quantizer": {"codebook_size": 96, **options}}))
    found = findings_by_symptom(RunHistory.load(folder))
    assert found["dead codes"].remedy == remedy
    assert ("norm imbalance" in found) == ("levels" not in options)


def test_nonfinite_losses_are_found(write_run_folder: Writer, tmp_path: Path) -> None:
    def break_loss(line: dict[str, Any]) -> None:
        if line["kind"] == "train" and line["step"] >= 391:
            line["loss"] = None if line["step"] % 2 else float("nan")

    run = with_changed_metrics(write_run_folder(tmp_path / "run", system="vq-vae"), break_loss)
    finding = findings_by_symptom(run)["loss not finite"]
    assert finding.severity == "critical"
    assert "10 of 400 logged steps" in finding.evidence
    assert "step 391" in finding.evidence


def test_null_loss_term_is_no_finding(write_run_folder: Writer, tmp_path: Path) -> None:
    run = with_changed_metrics(write_run_folder(tmp_path / "run", system="vq-vae"), lambda line: line.update(arc=None))
    assert "loss not finite" not in findings_by_symptom(run)


def test_nonfinite_codes_are_found(write_run_folder: Writer, tmp_path: Path) -> None:
    codebook = torch.randn(96, 8)
    codebook[:3] = float("nan")
    run = with_last_snapshot(write_run_folder(tmp_path / "run", system="vq-vae"), codebook, torch.full((96,), 100))
    assert "3 of 96 codes hold NaN" in findings_by_symptom(run)["codes not finite"].evidence


def test_too_few_tokens_are_found(write_run_folder: Writer, tmp_path: Path) -> None:
    run = with_last_snapshot(
        write_run_folder(tmp_path / "run", system="vq-vae"), torch.randn(96, 8), torch.ones(96, dtype=torch.int64)
    )
    assert "96 evaluation tokens for 96 codes" in findings_by_symptom(run)["too few tokens to judge usage"].evidence


def test_stuck_perplexity_is_found(write_run_folder: Writer, tmp_path: Path) -> None:
    def set_perplexity(line: dict[str, Any]) -> None:
        if line["kind"] == "eval":
            line["perplexity"] = 6.0

    run = with_changed_metrics(write_run_folder(tmp_path / "run", system="vq-vae"), set_perplexity)
    assert "perplexity is 6.0 of 96 and was 6.0 halfway" in findings_by_symptom(run)["perplexity stuck"].evidence


def test_ball_bound_that_never_or_always_binds_is_found(write_run_folder: Writer, tmp_path: Path) -> None:
    folder = write_run_folder(tmp_path / "run", system="arcvq-vae", used=90, bounded=True)

    def clip(share: float) -> Callable[[dict[str, Any]], None]:
        return lambda line: line.update(clipped_share=share) if line["kind"] == "eval" else None

    assert set(findings_by_symptom(with_changed_metrics(folder, clip(0.0)))) == {"ball bound never binds"}
    assert set(findings_by_symptom(with_changed_metrics(folder, clip(1.0)))) == {"ball bound always binds"}
    assert findings_by_symptom(with_changed_metrics(folder, clip(0.5))) == {}


def test_near_duplicates_equal_the_metric(write_run_folder: Writer, tmp_path: Path) -> None:
    """The page shows the metric beside the diagnosis, so the two must agree."""
    generator = torch.Generator().manual_seed(0)
    tiny_unused = torch.cat([torch.randn(10, 8, generator=generator), 0.01 * torch.randn(90, 8, generator=generator)])
    twins = torch.randn(50, 8, generator=generator).repeat(2, 1) + 1e-3 * torch.randn(100, 8, generator=generator)
    counts = torch.cat([torch.full((10,), 1000), torch.zeros(90, dtype=torch.int64)])
    for name, codebook in {"tiny": tiny_unused, "twins": twins}.items():
        run = with_last_snapshot(write_run_folder(tmp_path / name, system="vq-vae"), codebook, counts)
        expected = round(100 * near_duplicate_shares(codebook)["distance"])
        evidence = findings_by_symptom(run)["near-duplicate codes"].evidence
        assert f"{expected} of 100 codes" in evidence
        assert f"{expected} near duplicates" in distances_illustration([run]).caption
    distinct = with_last_snapshot(
        write_run_folder(tmp_path / "one", system="vq-vae"), torch.eye(8), torch.full((8,), 99)
    )
    assert "near-duplicate codes" not in findings_by_symptom(distinct)


def test_short_training_note_only_for_short_plain_run(write_run_folder: Writer, tmp_path: Path) -> None:
    folder = write_run_folder(tmp_path / "run", system="vq-vae", used=9)
    assert "short training" in findings_by_symptom(RunHistory.load(folder))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 20000}\n')
    assert "short training" not in findings_by_symptom(RunHistory.load(folder))
    bounded = RunHistory.load(write_run_folder(tmp_path / "bounded", system="arcvq-vae", used=9, bounded=True))
    assert {"dead codes"} <= set(findings_by_symptom(bounded)) <= {"dead codes", "norm imbalance", "perplexity stuck"}


def test_run_without_codebook_has_no_codebook_findings(collapsed: RunHistory) -> None:
    assert diagnose(dataclasses.replace(collapsed, snapshots=())) == []
