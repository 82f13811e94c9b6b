"""pFID, KID and other images in the document of a measured tokenizer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from arcvq.data import write_png
from arcvq.errors import ArcvqError
from arcvq.metrics import METRICS, Perturbation, kernel_distance
from arcvq.metrics.fid import fid_input
from arcvq.systems import Measured, measure


@pytest.fixture(autouse=True)
def small_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the Inception network by a small one."""
    network = nn.Sequential(nn.AdaptiveAvgPool2d(3), nn.Flatten())
    monkeypatch.setattr("arcvq.metrics.paired.fid_network", lambda device, download: network)
    monkeypatch.setattr("arcvq.metrics.fid.INPUT_SIZE", 16)


def measured(**options: Any) -> Measured:
    return measure("tiny", data="sample", limit=16, **options)


def test_pfid_is_measured_when_asked_for_and_its_perturbation_is_stated() -> None:
    document = measured(protocols=["exact", "paper"], metrics=["psnr", "rfid", "pfid"]).document
    for section in document["protocols"].values():
        assert section["metrics"].keys() == {"psnr", "rfid", "pfid"}
        assert section["metrics"]["pfid"] > section["metrics"]["rfid"]
        assert section["missing"] == {}
    assert document["perturbation"] == Perturbation().to_json()


def test_pfid_is_not_measured_unasked() -> None:
    result = measured()
    assert "perturbation" not in result.document
    assert "pfid" not in result.evaluations[0].metrics.keys() | result.evaluations[0].missing.keys()


def test_kid_is_measured_when_asked_for_and_is_that_of_the_features() -> None:
    result = measured(metrics=["psnr", "kid"])
    pixels = result.images.pixels
    made = (result.tokenizer.reconstruct(pixels.float() / 127.5 - 1) * 127.5 + 127.5).round().clamp(0, 255).byte()
    network = nn.Sequential(nn.AdaptiveAvgPool2d(3), nn.Flatten())
    expected = kernel_distance(*(network(fid_input(side, None, "tensorflow")) for side in (pixels, made)))
    found = result.document["protocols"]["exact"]["metrics"]
    assert found.keys() == {"psnr", "kid", "kid_std"}
    assert (found["kid"], found["kid_std"]) == pytest.approx(tuple(expected), rel=1e-4)
    assert "kid" not in METRICS


def test_kid_does_not_change_fid(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ARCVQ_CACHE", str(tmp_path))
    numbers = [measured(metrics=metrics).evaluations[0].metrics["rfid"] for metrics in (["rfid"], ["rfid", "kid"])]
    assert numbers[0] == numbers[1]


def test_all_images_of_a_folder_are_measured_and_the_document_says_so(tmp_path: Path) -> None:
    for index in range(5):
        write_png(tmp_path / f"{index}.png", torch.full((1, 28, 28), 40 * index, dtype=torch.uint8))
    document = measure("tiny", data=f"folder:{tmp_path}", split="all", metrics=["psnr"]).document
    assert (document["split"], document["protocols"]["exact"]["images"]) == ("all", 5)
    assert "split" not in measured(metrics=["psnr"]).document
    with pytest.raises(ArcvqError, match="the split all is for folder:PATH"):
        measure("tiny", data="sample", split="all")
