"""A training goes past images that cannot be read: others stand in for them, the same ones after a resume."""

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import torch
from PIL import Image
from run_records import assert_same_run
from torch import Tensor

from arcvq import ArcvqError
from arcvq.data import ImageSource, InMemoryImages, load_images
from arcvq.data.decoded import readable_images
from arcvq.data.shard_writer import ShardWriter
from arcvq.errors import Stopped
from arcvq.systems import TokenizerConfig, load_config, train

MakeConfig = Callable[..., TokenizerConfig]
COUNT = 18
# Image 5 and 6 follow each other, the last is followed by the first.
BAD = (2, 5, 6, 17)


def level(index: int) -> int:
    return 10 * index + 5


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """COUNT flat images in two classes for training, and two for testing."""
    for index in range(COUNT):
        path = tmp_path / "photos" / "train" / "ab"[index // 9] / f"{index:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (28, 28), level(index)).save(path, quality=100)
    for index in range(2):
        path = tmp_path / "photos" / "test" / "ab"[index] / "x.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (28, 28), 100).save(path)
    return tmp_path / "photos"


@pytest.fixture(params=["folder", "shards"])
def data(request: pytest.FixtureRequest, photos: Path, tmp_path: Path) -> str:
    """The name of a data set with the images BAD damaged."""
    for index in BAD:
        path = photos / "train" / "ab"[index // 9] / f"{index:02d}.jpg"
        path.write_bytes(damaged(path.read_bytes()))
    for split in ("train", "test"):
        with ShardWriter(tmp_path / "shards" / split, split, shard_size=9_000) as writer:
            for path in sorted((photos / split).rglob("*.jpg")):
                writer.add(path.stem, {"jpg": path.read_bytes(), "cls": str("ab".index(path.parent.name)).encode()})
    return f"{request.param}:{photos if request.param == 'folder' else tmp_path / 'shards'}"


def damaged(content: bytes) -> bytes:
    """The file without most of its compressed pixels, which its header does not show."""
    return content[: content.index(b"\xff\xda") + 12]


def expected(index: int) -> int:
    """The image that is used for this one."""
    while index % COUNT in BAD:
        index += 1
    return index % COUNT


def levels(pixels: Tensor) -> list[int]:
    return [round((int(image.float().mean()) - 5) / 10) for image in pixels]


@pytest.mark.parametrize("memory", [0, 1], ids=["on demand", "in memory"])
def test_next_readable_image_stands_in_with_its_label(data: str, memory: float) -> None:
    images = load_images(data, split="train", on_error="skip", memory=memory)
    assert isinstance(images, InMemoryImages) == bool(memory)
    wanted = [expected(index) for index in range(COUNT)]
    assert levels(images.gather(torch.arange(COUNT))) == wanted
    assert images.skipped is not None
    assert len(images.skipped) == len(BAD)
    for batch in islice(map(ImageSource(images, 5).fetch, ImageSource(images, 5).batches(seed=1)), 4):
        assert batch["label"].tolist() == [index // 9 for index in levels(batch["image"])]


def test_unreadable_images_stop_by_default(data: str) -> None:
    images = load_images(data, split="train", memory=0)
    with pytest.raises(ArcvqError, match=r"cannot read 2 images: .*05.*06"):
        images.gather(torch.tensor([4, 5, 6]))


def test_set_without_any_readable_image_is_refused(photos: Path) -> None:
    for path in (photos / "train").rglob("*.jpg"):
        path.write_bytes(damaged(path.read_bytes()))
    images = load_images(f"folder:{photos}", split="train", on_error="skip", memory=0)
    with pytest.raises(ArcvqError, match="none of the 18 images can be read"):
        images.gather(torch.tensor([3]))


@pytest.mark.parametrize("memory", [0, 1], ids=["on demand", "in memory"])
def test_measured_images_are_left_out_instead(data: str, memory: float) -> None:
    images, left_out = readable_images(load_images(data, split="train", on_error="skip", memory=0), memory)
    kept = [index for index in range(COUNT) if index not in BAD]
    assert isinstance(images, InMemoryImages) == bool(memory)
    assert levels(images.gather(torch.arange(len(images)))) == kept
    assert images.labels is not None
    assert images.labels.tolist() == [index // 9 for index in kept]
    assert [Path(name).stem for name in left_out] == [f"{index:02d}" for index in BAD]
    with pytest.raises(ArcvqError, match="none of the 2 images can be read"):
        readable_images(load_images(data, split="train", on_error="skip", memory=0).subset([5, 17]))


def tiny(tiny_settings: Callable[..., list[str]], data: str) -> TokenizerConfig:
    changes = {
        "data.name": data,
        "data.on_error": "skip",
        "data.memory": 0,
        "data.batch_size": 4,
        "data.limit": None,
        "training.steps": 12,
    }
    config = load_config("sample/vq-vae", tiny_settings(changes))
    assert isinstance(config, TokenizerConfig)
    return config


def test_resumed_training_skips_the_same_images(
    data: str, tmp_path: Path, tiny_settings: Callable[..., list[str]]
) -> None:
    config = tiny(tiny_settings, data)
    with pytest.warns(UserWarning, match=r"4 images cannot be read, others stand in for them: see .*skipped\.jsonl"):
        train(config, tmp_path / "whole", quiet=True)
    with pytest.raises(Stopped), pytest.warns(UserWarning, match="cannot be read"):
        train(config, tmp_path / "stopped", quiet=True, stop_after=7)
    train(config, tmp_path / "stopped", quiet=True)
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")
    for run in ("whole", "stopped"):
        lines = [json.loads(line) for line in (tmp_path / run / "skipped.jsonl").read_text().splitlines()]
        assert [line["image"][-7:].removesuffix(".jpg")[-2:] for line in lines] == [f"{index:02d}" for index in BAD]
        assert all(line["reason"] for line in lines)
        assert json.loads((tmp_path / run / "training.json").read_text())["skipped_images"] == len(BAD)


def test_training_without_skipping_lists_nothing(trained_run: Path) -> None:
    assert not (trained_run / "skipped.jsonl").exists()
    assert "skipped_images" not in json.loads((trained_run / "training.json").read_text())
