"""The set `photos`: flowers and pets in torchvision's layout, every tenth image held out."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torchvision
from scipy.io import savemat
from shard_cases import all_pixels, noise

from arcvq.data import download as downloading
from arcvq.data import load_images, write_png
from arcvq.errors import ArcvqError

BREEDS = ["Abyssinian", "american_bulldog", "Bengal"]


def write_jpg(path: Path, index: int) -> None:
    """A PNG called .jpg: Pillow looks at the content, and lossless pixels can be compared."""
    write_png(path.with_suffix(".png"), noise(index, 12, 10))
    path.with_suffix(".png").rename(path)


def write_flowers(root: Path) -> None:
    for number in range(1, 13):
        write_jpg(root / "flowers-102" / "jpg" / f"image_{number:05d}.jpg", number)
    savemat(root / "flowers-102" / "imagelabels.mat", {"labels": [list(range(91, 103))]})


def write_pets(root: Path) -> None:
    for breed in BREEDS:
        for number in range(1, 4):
            write_jpg(root / "oxford-iiit-pet" / "images" / f"{breed}_{number}.jpg", 100 + number)
    (root / "oxford-iiit-pet" / "images" / "Bengal_1.mat").write_bytes(b"")  # as in the archive


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_flowers(tmp_path)
    write_pets(tmp_path)
    return tmp_path


def test_every_tenth_photo_is_a_test_image(root: Path) -> None:
    train, test = (load_images("photos", split=split, root=root, download=False) for split in ("train", "test"))
    assert (len(train), len(test), train.name, train.channels) == (19, 2, "photos", 3)
    # The 10th is a flower. The 20th of 12 flowers and then the pets by name, capitals first, is the 8th pet.
    assert torch.equal(all_pixels(test), torch.stack([noise(10, 12, 10), noise(102, 12, 10)]))
    assert train.labels is not None
    assert test.labels is not None
    assert test.labels.tolist() == [99, 103]
    assert train.labels.tolist() == [*range(90, 99), 100, 101, *[102] * 3, *[104] * 3, 103, 103]
    assert len(load_images("photos", split="train", root=root, limit=5, image_size=8)) == 5


def test_class_names_are_those_of_torchvision(root: Path) -> None:
    names = load_images("photos", split="train", root=root, download=False).class_names
    assert names is not None
    assert names[:102] == torchvision.datasets.Flowers102.classes
    assert names[102:] == ["Abyssinian", "American Bulldog", "Bengal"]


def test_absent_half_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_flowers(tmp_path)
    fetched: list[str] = []

    def fetch(name: str) -> Callable[..., None]:
        def make(root: str, download: bool) -> None:
            assert download
            fetched.append(name)
            write_pets(Path(root))

        return make

    monkeypatch.setattr(downloading, "torchvision_class", fetch)
    assert len(load_images("photos", split="test", root=tmp_path)) == 2
    assert fetched == ["oxford-iiit-pet"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["flowers-102", "oxford-iiit-pet"]


def test_torchvision_downloads_to_these_folders() -> None:
    for name in ("flowers-102", "oxford-iiit-pet"):
        dataset = downloading.torchvision_class(name)
        with pytest.raises(RuntimeError, match="not found"):
            dataset("nowhere")
    assert downloading.torchvision_class("flowers-102") is torchvision.datasets.Flowers102
    assert downloading.torchvision_class("oxford-iiit-pet") is torchvision.datasets.OxfordIIITPet


def test_absent_photos_error_names_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArcvqError, match=r"photos is not in .*downloading is off.*flowers-102/jpg.*oxford-iiit-pet"):
        load_images("photos", split="train", root=tmp_path, download=False)

    def unreachable(root: str, download: bool) -> None:
        raise OSError("no route\nto the host")

    monkeypatch.setattr(downloading, "torchvision_class", lambda name: unreachable)
    with pytest.raises(ArcvqError, match=r"photos is not in .*the download failed: no route\)") as caught:
        load_images("photos", split="train", root=tmp_path)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("labels", [b"no matlab file", [1, 2], [0] * 12, [103] * 12])
def test_damaged_flower_labels_are_refused(root: Path, labels: bytes | list[int]) -> None:
    file = root / "flowers-102" / "imagelabels.mat"
    if isinstance(labels, bytes):
        file.write_bytes(labels)
    else:
        savemat(file, {"labels": [labels]})
    with pytest.raises(ArcvqError, match=r"imagelabels\.mat .*fetch it again") as caught:
        load_images("photos", split="train", root=root, download=False)
    assert "\n" not in str(caught.value)


def test_photos_are_not_held_out_by_other_rules(root: Path) -> None:
    with pytest.raises(ArcvqError, match="holdout_every is for folder: and shards:, and photos has test images"):
        load_images("photos", split="train", root=root, holdout_every=5)
