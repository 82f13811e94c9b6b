from collections.abc import Iterator

import pytest
import torch

from arcvq.functional.precision import full_precision

CONVOLUTIONS = torch.backends.cudnn.conv  # type: ignore[attr-defined]


@pytest.fixture(params=["tf32", "ieee"])
def chosen(request: pytest.FixtureRequest) -> Iterator[str]:
    before = CONVOLUTIONS.fp32_precision
    CONVOLUTIONS.fp32_precision = request.param
    yield request.param
    CONVOLUTIONS.fp32_precision = before


def test_convolutions_are_exact_inside_and_as_before_outside(chosen: str) -> None:
    with full_precision(torch.device("cpu")):
        assert CONVOLUTIONS.fp32_precision == "ieee"
    assert CONVOLUTIONS.fp32_precision == chosen


def stop_inside() -> None:
    with full_precision(torch.device("cpu")):
        raise RuntimeError("stop")


def test_an_error_inside_changes_nothing(chosen: str) -> None:
    with pytest.raises(RuntimeError, match="stop"):
        stop_inside()
    assert CONVOLUTIONS.fp32_precision == chosen


def test_autocast_is_off_inside() -> None:
    x = torch.ones(2, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        with full_precision(torch.device("cpu")):
            assert (x @ x).dtype == torch.float32
