"""Which images are held out for testing."""

from pathlib import Path
from typing import Any

import pytest
import torch
from shard_cases import all_pixels, noise, write_images

from arcvq.data import (
    Augmentation,
    FolderImages,
    InMemoryImages,
    ShardOptions,
    first_images,
    hold_out,
    load_images,
    load_sources,
    read_image,
    write_shards,
)
from arcvq.data.images import resize_images
from arcvq.data.splits import choose_test, spread
from arcvq.errors import ArcvqError
from arcvq.systems import load_config
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
def test_sets_sorted_by_class_are_held_out_evenly(name: str) -> None:
    labels = torch.arange(10) // 5
    images = InMemoryImages(name, torch.arange(10, dtype=torch.uint8).view(10, 1, 1, 1), labels, ["a", "b"])
    rest, held = hold_out(images, 4)
    assert held.pixels.flatten().tolist() == [0, 2, 5, 7]
    assert rest.pixels.flatten().tolist() == [1, 3, 4, 6, 8, 9]
    for part in (rest, held):
        assert part.labels is not None
        assert part.labels.tolist() == [index // 5 for index in part.pixels.flatten().tolist()]
    with pytest.raises(ArcvqError, match=f"data.holdout is 10, but {name} has 10 training images"):
        hold_out(images, 10)


@pytest.mark.parametrize("memory", [0, 1], ids=["on demand", "in memory"])
@pytest.mark.parametrize("kind", ["folder", "shards"])
def test_files_are_held_out_evenly_with_their_labels(tmp_path: Path, kind: str, memory: float) -> None:
    folder = write_images(tmp_path / "folder", 12, classes=2)
    write_shards(folder, tmp_path / "shards", ShardOptions(size=8, format="png"))
    options: dict[str, Any] = {"batch_size": 4, "holdout_every": 12, "memory": memory}
    name = f"{kind}:{tmp_path / kind}"
    all_images = load_images(name, split="train", holdout_every=12)
    train, held = load_sources(name, holdout=3, **options)
    assert isinstance(train.images, InMemoryImages) == isinstance(held.images, InMemoryImages) == bool(memory)
    assert held.name == f"the held-out images of {name}"
    picks = [0, 3, 7]
    others = [index for index in range(11) if index not in picks]
    assert all_images.labels is not None
    for images, indices in ((train.images, others), (held.images, picks)):
        assert torch.equal(all_pixels(images), all_pixels(all_images)[indices])
        assert images.labels is not None
        assert torch.equal(images.labels, all_images.labels[indices])
        assert images.class_names == ["class-0", "class-1"]
    limited, shown = load_sources(name, holdout=3, limit=4, evaluation_images=1, **options)
    assert torch.equal(all_pixels(limited.images), all_pixels(all_images)[[others[index] for index in (0, 2, 4, 6)]])
    assert torch.equal(all_pixels(shown.images), all_pixels(all_images)[[0]])
    with pytest.raises(ArcvqError, match=r"data\.holdout is 11, but .* has 11 training images"):
        load_sources(name, holdout=11, **options)


@pytest.mark.parametrize("memory", [0, 1], ids=["on demand", "in memory"])
def test_no_held_out_image_stands_in_for_an_unreadable_one(tmp_path: Path, memory: float) -> None:
    folder = write_images(tmp_path, 10)
    (folder / "04.png").write_text("damaged")  # 05 is held out
    options: dict[str, Any] = {"batch_size": 4, "holdout_every": 10, "memory": memory}
    train, held = load_sources(f"folder:{folder}", holdout=5, on_error="skip", **options)
    levels = [next(n for n in range(10) if torch.equal(noise(n), image)) for image in all_pixels(held.images)]
    assert levels == [0, 1, 3, 5, 7]
    levels = [next(n for n in range(10) if torch.equal(noise(n), image)) for image in all_pixels(train.images)]
    assert levels == [2, 6, 6, 8]
    assert train.skipped is not None
    assert [Path(name).name for name in train.skipped] == ["04.png"]
    assert held.skipped == {}
    with pytest.raises(ArcvqError, match=r"cannot read the image .*04\.png"):
        load_sources(f"folder:{folder}", holdout=5, **options)


@pytest.mark.parametrize("memory", [0, 1], ids=["on demand", "in memory"])
def test_held_out_files_have_the_size_of_training_batches(tmp_path: Path, memory: float) -> None:
    folder = write_images(tmp_path, 8)
    train, held = load_sources(
        f"folder:{folder}", holdout=2, batch_size=4, holdout_every=8, augmentation=Augmentation(crop=4), memory=memory
    )
    assert train.image_size == held.image_size == (4, 4)
    assert torch.equal(all_pixels(held.images)[0], read_image(folder / "00.png", 3, 4))


@pytest.mark.parametrize(("memory", "kind"), [(191 / 2**30, FolderImages), (192 / 2**30, InMemoryImages)])
def test_memory_decides_whether_files_are_kept(tmp_path: Path, memory: float, kind: type) -> None:
    """One image of 3 × 8 × 8 bytes."""
    folder = write_images(tmp_path, 2)
    assert isinstance(load_images(f"folder:{folder}", split="train", memory=memory), kind)
    train, test = load_sources(f"folder:{folder}", batch_size=1, memory=memory)
    assert isinstance(train.images, kind)
    assert isinstance(test.images, kind)
    config = load_config("sample/vq-vae", ["--data.name", f"folder:{folder}", "--data.memory", str(memory)])
    assert [source.resident for source in config.load()] == [kind is InMemoryImages] * 2


@pytest.mark.parametrize("memory", [-1, float("nan"), float("inf")])
def test_wrong_memory_is_refused(memory: float) -> None:
    with pytest.raises(ArcvqError, match=r"data\.memory must be a number of GiB from 0"):
        DataConfig(memory=memory)


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
