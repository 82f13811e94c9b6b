"""The limit is what the device does at its best, and a fraction of it is a fraction."""

import pytest
import torch

from arcvq.bench import Limits, Size, limits, measure_limits, run_suite
from arcvq.bench.limits import sheet

CPU = torch.device("cpu")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(limits.PRODUCT, "cpu", 128)
    monkeypatch.setitem(limits.COPY, "cpu", 2**20)


def test_the_slower_of_computing_and_moving_counts() -> None:
    device = Limits(operations_per_second=1e9, bytes_per_second=1e6)
    assert device.milliseconds(operations=2e9, least_bytes=1e6) == 2000
    assert device.milliseconds(operations=1e9, least_bytes=3e6) == 3000


def test_the_measured_limits_come_from_the_time_of_a_product_and_a_copy(
    small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "fastest_run", lambda function, device: function() is None or 2.0)
    found = measure_limits(CPU)
    assert found.operations_per_second == pytest.approx(2 * 128**3 / 2e-3)
    assert found.bytes_per_second == pytest.approx(2 * 2**20 / 2e-3)


@pytest.mark.parametrize(
    ("name", "memory"),
    [
        ("NVIDIA H200", 4.8e12),
        ("NVIDIA H100 80GB HBM3", 3.35e12),
        ("NVIDIA H100 PCIe", 2.0e12),
        ("NVIDIA A100-SXM4-80GB", 2.039e12),
        ("NVIDIA GeForce RTX 4090", 1.008e12),
    ],
)
def test_a_known_device_has_its_data_sheet(name: str, memory: float) -> None:
    numbers = sheet(name)
    assert numbers is not None
    assert numbers[2] == memory


def test_rows_carry_the_limit_and_the_share_of_it(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    document = run_suite([Size(64, 16, 8)], CPU, seconds=0.0, tasks=["arc"])
    assert sheet(document["device"]) is None
    assert document["limits"].keys() == {"measured"}
    measured = Limits(**document["limits"]["measured"])
    for row in document["rows"]:
        assert row["limit_milliseconds"] == measured.milliseconds(row["operations"], row["least_bytes"])
        assert row["limit_fraction"] == row["limit_milliseconds"] / row["milliseconds"]
        assert row["exponentials"] == 2 * 64 * 16
        assert "sheet_limit_fraction" not in row

    monkeypatch.setattr("platform.machine", lambda: "NVIDIA H200")
    document = run_suite([Size(64, 16, 8)], CPU, seconds=0.0, tasks=["arc"])
    assert document["limits"]["data_sheet"]["tf32_operations_per_second"] == 494.7e12
    for row in document["rows"]:
        assert row["sheet_limit_milliseconds"] == Limits(67e12, 4.8e12).milliseconds(
            row["operations"], row["least_bytes"]
        )
        assert row["sheet_limit_fraction"] < row["limit_fraction"]
