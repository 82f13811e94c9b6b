"""What a quantizer exchanges with other processes in a step of training: as many bytes as docs/scale.md says."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from arcvq import distributed
from arcvq.quantizers import (
    CVQ,
    EMAVQ,
    FSQ,
    VQ,
    Arc,
    ArcVQ,
    Contrastive,
    Entropy,
    GroupedVQ,
    Quantizer,
    ResidualVQ,
    Restart,
    SimVQ,
)

K, D, N, TOP = 100, 8, 60, 3
COUNTS, ROWS, FLOATS = 8 * K, 4 * K * D, 4 * K
# class, options → bytes
EXCHANGED: dict[str, tuple[type[Quantizer], dict[str, Any], int]] = {
    "vq": (VQ, {}, COUNTS),
    "simvq": (SimVQ, {}, COUNTS),
    "fsq": (FSQ, {"levels": [5, 5, 4]}, COUNTS),
    "arcvq": (ArcVQ, {}, COUNTS + K * (12 * TOP + 4)),
    "arcvq, adaptive": (ArcVQ, {"arc": Arc(schedule="adaptive")}, 2 * COUNTS + K * (12 * TOP + 4)),
    "entropy": (VQ, {"entropy": Entropy()}, COUNTS + FLOATS),
    "emavq": (EMAVQ, {}, 2 * COUNTS + ROWS),
    "cvq": (CVQ, {}, 2 * COUNTS + ROWS + FLOATS),
    "cvq, contrastive": (CVQ, {"contrastive": Contrastive()}, 2 * COUNTS + ROWS + FLOATS + N * (4 * D + 1)),
    "residual": (ResidualVQ, {"depth": 2, "shared": False, "codebook": {"kind": "vq"}}, 2 * COUNTS + 2 * COUNTS),
    "grouped": (GroupedVQ, {"groups": 2, "codebook": {"kind": "vq"}}, 2 * COUNTS + 2 * COUNTS),
    "restart": (VQ, {"restart": Restart()}, 3 * COUNTS + ROWS),
}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each message of the first of two processes; the second one has the same."""
    sizes: list[int] = []

    def send(value: Tensor, *_: Any, **__: Any) -> None:
        sizes.append(value.numel() * value.element_size())

    def all_gather(parts: list[Tensor], value: Tensor) -> None:
        send(value)
        for part in parts:
            part.copy_(value)

    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    monkeypatch.setattr(distributed, "rank", lambda: 0)
    for name, function in (("all_reduce", send), ("broadcast", send), ("all_gather", all_gather)):
        monkeypatch.setattr(dist, name, function)
    return sizes


@pytest.mark.parametrize("name", EXCHANGED)
def test_bytes_of_a_step_grow_with_codes_and_not_with_tokens(name: str, sent: list[int]) -> None:
    """All but the contrastive term of CVQ, which sends its latents. Scalars, of at most 8 bytes, do not count."""
    cls, options, expected = EXCHANGED[name]
    quantizer = cls(D, K, **options)
    quantizer.after_step(quantizer(torch.randn(3, D, 4, 5)))
    assert sum(size for size in sent if size > 8) == expected
