import pytest
import torch

from arcvq.data import to_uint8, to_unit
from arcvq.errors import ArcvqError

LEVELS = torch.arange(256, dtype=torch.uint8)


def test_to_unit_covers_range_and_round_trips() -> None:
    unit = to_unit(LEVELS)
    assert unit.dtype == torch.float32
    assert unit[0] == -1.0
    assert unit[255] == 1.0
    assert torch.equal(to_uint8(unit), LEVELS)


def test_to_unit_layout_changes_strides_only() -> None:
    for channels in (1, 3):
        pixels = torch.randint(0, 256, (2, channels, 4, 6), dtype=torch.uint8)
        images = to_unit(pixels, torch.channels_last)
        assert torch.equal(images, to_unit(pixels))
        assert images.stride() == (24 * channels, 1, 6 * channels, channels)


def test_to_uint8_clamps_values_outside_range() -> None:
    assert to_uint8(torch.tensor([-3.0, 3.0])).tolist() == [0, 255]


def test_rounding_modes_round_and_floor() -> None:
    value = torch.tensor([10.7 / 127.5 - 1.0])
    assert to_uint8(value, "round").item() == 11
    assert to_uint8(value, "floor").item() == 10


def test_floor_loses_at_most_one_level() -> None:
    lost = LEVELS.int() - to_uint8(to_unit(LEVELS), "floor").int()
    assert set(lost.tolist()) == {0, 1}


def test_wrong_dtype_and_rounding_are_refused() -> None:
    with pytest.raises(ArcvqError, match="unknown rounding 'up'"):
        to_uint8(torch.zeros(1), "up")  # type: ignore[arg-type]
    with pytest.raises(ArcvqError, match=r"got torch\.uint8"):
        to_uint8(LEVELS)
    with pytest.raises(ArcvqError, match=r"takes uint8 pixels, but got torch\.float32"):
        to_unit(torch.zeros(1))
