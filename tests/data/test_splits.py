"""Which images are held out for testing."""

from pathlib import Path

import pytest
import torch
from shard_cases import all_pixels, noise, write_images

from arcvq.data import InMemoryImages, first_images, hold_out, load_images
from arcvq.data.images import resize_images
from arcvq.data.splits import choose_test, spread
from arcvq.errors import ArcvqError
from arcvq.systems.config import DataConfig


def test_every_nth_name_is_held_out() -> None:
    names = [f"{index}.png" for index in range(11)]
    assert [index for index, test in enumerate(choose_test(names, 3)) if test] == [2, 5, 8]
    assert choose_test(names[:2], 10) == [False, True]
    assert choose_test(names[:1], 10) == [True]
    with pytest.raises(ArcvqError, match="holdout_every is 1; it must be at least 2"):
        choose_test(names, 1)


def test_spread_picks_evenly() -> None:
    assert spread(10, 4) == [0, 2, 5, 7]
    assert spread(3, 4) == spread(3, None) == [0, 1, 2]


def test_folder_is_split_by_holdout_every(tmp_path: Path) -> None:
    folder = write_images(tmp_path, 10)
    test = load_images(f"folder:{folder}", split="test", holdout_every=5)
    assert torch.equal(all_pixels(test), torch.stack([noise(4), noise(9)]))
    assert len(load_images(f"folder:{folder}", split="train", holdout_every=5)) == 8


def test_folder_with_splits_refuses_holdout_every(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_images(tmp_path / split, 2)
    with pytest.raises(ArcvqError, match="has a test split of its own"):
        load_images(f"folder:{tmp_path}", split="train", holdout_every=5)
    with pytest.raises(ArcvqError, match="sample has test images"):
        load_images("sample", split="train", holdout_every=5)


def test_class_names_follow_the_images(tmp_path: Path) -> None:
    folder = write_images(tmp_path, 10, classes=2)
    assert load_images(f"folder:{folder}", split="train").class_names == ["class-0", "class-1"]
    images = InMemoryImages("toy", torch.zeros(4, 1, 6, 6, dtype=torch.uint8), torch.arange(4), ["a", "b", "c", "d"])
    for each in (first_images(images, 2), resize_images(images, 4), images.to("cpu"), *hold_out(images, 1)):
        assert each.class_names == ["a", "b", "c", "d"]


@pytest.mark.parametrize("name", ["photos", "folder:x", "shards:x"])
def test_images_held_out_of_a_set_sorted_by_class_are_spread_over_it(name: str) -> None:
    pixels = torch.arange(6, dtype=torch.uint8).view(6, 1, 1, 1)
    rest, held_out = hold_out(InMemoryImages(name, pixels, torch.arange(6)), 2)
    assert (rest.pixels.flatten().tolist(), held_out.pixels.flatten().tolist()) == ([1, 2, 4, 5], [0, 3])
    assert held_out.labels is not None
    assert held_out.labels.tolist() == [0, 3]


def test_images_that_are_decoded_on_demand_are_not_held_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_images(tmp_path, 4)
    monkeypatch.setattr("arcvq.data.folder.MEMORY_LIMIT", 1)
    with pytest.raises(ArcvqError, match=r"data\.holdout is for sets that fit in memory"):
        hold_out(load_images(f"folder:{folder}", split="train"), 1)


def test_the_split_all_of_a_folder_has_all_its_images(tmp_path: Path) -> None:
    whole = load_images(f"folder:{write_images(tmp_path / 'whole', 10)}", split="all", holdout_every=5)
    assert torch.equal(all_pixels(whole), torch.stack([noise(i) for i in range(10)]))
    for split in ("train", "val"):
        write_images(tmp_path / "halves" / split, 4, classes=2)
    halves = load_images(f"folder:{tmp_path / 'halves'}", split="all")
    assert (len(halves), halves.class_names) == (8, ["class-0", "class-1"])
    assert halves.labels is not None
    assert halves.labels.bincount().tolist() == [4, 4]


def test_data_config_checks_its_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert DataConfig(name="shards:here").name == f"shards:{tmp_path / 'here'}"
    assert (DataConfig().holdout_every, DataConfig().on_error) == (None, "stop")
    with pytest.raises(ArcvqError, match=r"data\.holdout_every must be at least 2"):
        DataConfig(holdout_every=1)
