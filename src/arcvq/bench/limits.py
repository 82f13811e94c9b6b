"""What a device could do at best: a large product and a large copy, timed in the same run; the data sheet's numbers beside them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from arcvq.bench.measure import fastest_run
from arcvq.functional.precision import ieee_matmul

# Side of the square float32 product, and bytes of the copy.
PRODUCT = {"cuda": 8192, "cpu": 2048}
COPY = {"cuda": 2**30, "cpu": 2**27}


@dataclass(frozen=True)
class Limits:
    """operations_per_second: float32 multiply-adds, as two each; bytes_per_second: read and written."""

    operations_per_second: float
    bytes_per_second: float

    def milliseconds(self, operations: float, least_bytes: float) -> float:
        """No way of doing this much work is faster: the slower of computing and moving, done side by side."""
        return 1e3 * max(operations / self.operations_per_second, least_bytes / self.bytes_per_second)


# Vendors' data sheets: float32 outside the tensor cores, dense TensorFloat-32 inside them, memory. The first name that fits counts.
SHEETS: dict[str, tuple[float, float, float]] = {
    "H200": (67e12, 494.7e12, 4.8e12),
    "H100 PCIe": (51e12, 378e12, 2.0e12),
    "H100": (67e12, 494.7e12, 3.35e12),
    "A100-SXM4-80GB": (19.5e12, 156e12, 2.039e12),
    "A100": (19.5e12, 156e12, 1.555e12),
    "RTX 4090": (82.6e12, 82.6e12, 1.008e12),
}


def sheet(device_name: str) -> tuple[float, float, float] | None:
    """float32 and TensorFloat-32 operations a second, bytes a second; None for a device that is not in the list."""
    return next((numbers for name, numbers in SHEETS.items() if name in device_name), None)


def measure_limits(device: torch.device) -> Limits:
    """With torch, on this device, now: other work on the machine slows these as it slows what is held against them."""
    side = PRODUCT.get(device.type, PRODUCT["cpu"])
    a, b = torch.randn(2, side, side, device=device)
    product = torch.empty_like(a)
    with ieee_matmul(a):
        seconds = fastest_run(lambda: torch.mm(a, b, out=product), device) / 1e3
    operations = 2.0 * math.pow(side, 3) / seconds
    source = torch.zeros(COPY.get(device.type, COPY["cpu"]), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = fastest_run(lambda: target.copy_(source), device) / 1e3
    return Limits(operations, 2.0 * source.numel() / seconds)
