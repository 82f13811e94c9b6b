from collections.abc import Iterator

import pytest
import torch

from arcvq.functional.precision import full_precision

CONVOLUTIONS = torch.backends.cudnn.conv  # type: ignore[attr-defined]


@pytest.fixture(params=["tf32", "ieee"])
def precision_before(request: pytest.FixtureRequest) -> Iterator[str]:
    before = CONVOLUTIONS.fp32_precision
    CONVOLUTIONS.fp32_precision = request.param
    yield request.param
    CONVOLUTIONS.fp32_precision = before


def test_full_precision_sets_and_restores_convolutions(precision_before: str) -> None:
    with full_precision(torch.device("cpu")):
        assert CONVOLUTIONS.fp32_precision == "ieee"
    assert CONVOLUTIONS.fp32_precision == precision_before


def raise_inside() -> None:
    with full_precision(torch.device("cpu")):
        raise RuntimeError("stop")


def test_full_precision_restores_convolutions_after_error(precision_before: str) -> None:
    with pytest.raises(RuntimeError, match="stop"):
        raise_inside()
    assert CONVOLUTIONS.fp32_precision == precision_before


def test_full_precision_disables_autocast() -> None:
    x = torch.ones(2, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        with full_precision(torch.device("cpu")):
            assert (x @ x).dtype == torch.float32
