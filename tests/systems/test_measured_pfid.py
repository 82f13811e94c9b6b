"""pFID in the document of a measured tokenizer."""

from typing import Any

import pytest
from torch import nn

from arcvq.metrics import Perturbation
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
