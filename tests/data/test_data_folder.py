from pathlib import Path

import pytest
import torch
from PIL import Image

from arcvq.data import FolderImages, Images, InMemoryImages, batches, folder, load_images, write_png
from arcvq.errors import ArcvqError


def write_flat_image(path: Path, level: int, size: tuple[int, int] = (8, 8), channels: int = 3) -> None:
    write_png(path, torch.full((channels, *size), level, dtype=torch.uint8))


def levels(images: Images) -> list[int]:
    """The grey level of each flat image."""
    return images.gather(torch.arange(len(images)))[:, 0, 0, 0].tolist()


def test_held_out_files_are_one_in_twenty_and_stable(tmp_path: Path) -> None:
    for index in range(200):
        write_flat_image(tmp_path / f"{index:03d}.png", index)
    train = load_images(f"folder:{tmp_path}", split="train")
    test = load_images(f"folder:{tmp_path}", split="test")
    assert 4 <= len(test) <= 20
    assert sorted(levels(train) + levels(test)) == list(range(200))
    for index in range(200, 220):  # new files, sorted before the old ones
        write_flat_image(tmp_path / f"!{index}.png", index)
    later = load_images(f"folder:{tmp_path}", split="test")
    assert [level for level in levels(later) if level < 200] == levels(test)
    assert train.name == f"folder:{tmp_path}"
    assert train.labels is None


def test_small_folder_tests_on_last_image(tmp_path: Path) -> None:
    for index in range(3):
        write_flat_image(tmp_path / f"{index}.PNG", index)
    assert levels(load_images(f"folder:{tmp_path}", split="train")) == [0, 1]
    assert levels(load_images(f"folder:{tmp_path}", split="test")) == [2]


def test_single_image_cannot_be_split(tmp_path: Path) -> None:
    write_flat_image(tmp_path / "only.png", 1)
    with pytest.raises(ArcvqError, match="no image for the train split"):
        load_images(f"folder:{tmp_path}", split="train")


@pytest.mark.parametrize("held_out", ["test", "val"])
def test_split_folders_give_splits_and_labels(tmp_path: Path, held_out: str) -> None:
    write_flat_image(tmp_path / "train" / "cat" / "deep" / "a.png", 1)
    write_flat_image(tmp_path / "train" / "dog" / "b.png", 2)
    write_flat_image(tmp_path / held_out / "dog" / "c.png", 3)
    train = load_images(f"folder:{tmp_path}", split="train")
    test = load_images(f"folder:{tmp_path}", split="test")
    assert levels(train) == [1, 2]
    assert levels(test) == [3]
    assert train.labels is not None
    assert train.labels.tolist() == [0, 1]
    assert test.labels is not None
    assert test.labels.tolist() == [1]  # dog is class 1 in both


def test_folder_is_greyscale_only_if_all_images_are(tmp_path: Path) -> None:
    write_flat_image(tmp_path / "a.png", 1, channels=1)
    write_flat_image(tmp_path / "b.png", 2, channels=1)
    assert load_images(f"folder:{tmp_path}", split="train").channels == 1
    write_flat_image(tmp_path / "c.png", 3, channels=3)
    assert load_images(f"folder:{tmp_path}", split="train").channels == 3


def test_all_image_formats_load_and_other_files_warn(tmp_path: Path) -> None:
    for index, suffix in enumerate(["jpg", "JPEG", "png", "webp", "bmp", "tif", "TIFF", "gif"]):
        Image.new("RGB", (8, 8), (100, 100, 100)).save(tmp_path / f"{index}.{suffix}")
    (tmp_path / "notes.txt").write_text("not an image")
    (tmp_path / "._0.jpg").write_bytes(b"from a file manager")
    (tmp_path / "film.mp4").write_text("not an image")
    (tmp_path / "more.txt").write_text("not an image")
    with pytest.warns(UserWarning, match=r"3 files are not images and were left out: \.txt \(2\), \.mp4 \(1\)"):
        train = load_images(f"folder:{tmp_path}", split="train")
    with pytest.warns(UserWarning, match="left out"):
        test = load_images(f"folder:{tmp_path}", split="test")
    assert len(train) + len(test) == 8


@pytest.mark.parametrize("suffix", ["gif", "tiff"])
def test_first_frame_of_animation_is_read(tmp_path: Path, suffix: str) -> None:
    first, second = (Image.new("L", (8, 8), level) for level in (50, 200))
    for name in "ab":
        first.save(tmp_path / f"{name}.{suffix}", save_all=True, append_images=[second])
    assert levels(load_images(f"folder:{tmp_path}", split="test")) == [50]


def test_links_are_followed_except_loops(tmp_path: Path) -> None:
    write_flat_image(tmp_path / "elsewhere" / "a.png", 1)
    write_flat_image(tmp_path / "photos" / "dog" / "b.png", 2)
    (tmp_path / "photos" / "cat").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "photos" / "dog" / "up").symlink_to(tmp_path / "photos")
    assert [relative.as_posix() for relative, _ in folder.image_paths(tmp_path / "photos")] == [
        "cat/a.png",
        "dog/b.png",
    ]


def test_link_to_no_file_is_an_unreadable_image(tmp_path: Path) -> None:
    for index in range(3):
        write_flat_image(tmp_path / "photos" / f"{index}.png", index)
    (tmp_path / "photos" / "1.png").unlink()
    (tmp_path / "photos" / "1.png").symlink_to(tmp_path / "absent.png")
    with pytest.raises(ArcvqError, match=r"cannot read the image .*1\.png \(a link to no file\)"):
        load_images(f"folder:{tmp_path / 'photos'}", split="train")
    images = load_images(f"folder:{tmp_path / 'photos'}", split="train", holdout_every=3, on_error="skip")
    assert images.skipped == {str(tmp_path / "photos" / "1.png"): "a link to no file"}


def test_folder_of_tar_files_is_named_as_shards(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(bytes(1024))
    with pytest.raises(ArcvqError, match=f"no images in {tmp_path}, but tar files: write shards:{tmp_path}"):
        load_images(f"folder:{tmp_path}", split="train")


def test_mixed_sizes_need_image_size(tmp_path: Path) -> None:
    write_flat_image(tmp_path / "a.png", 1)
    write_flat_image(tmp_path / "b.png", 2, size=(10, 12))
    with pytest.raises(ArcvqError, match=r"a\.png is 8x8, b\.png is 12x10\); give an image_size"):
        load_images(f"folder:{tmp_path}", split="train")
    images = load_images(f"folder:{tmp_path}", split="test", image_size=6)
    assert (images.height, images.width) == (6, 6)
    assert levels(images) == [2]


def test_wrong_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArcvqError, match=r"no such folder: .*absent"):
        load_images(f"folder:{tmp_path / 'absent'}", split="train")
    with pytest.raises(ArcvqError, match=r"no images in .*; expected files ending in \.bmp, \.gif"):
        load_images(f"folder:{tmp_path}", split="train")
    write_flat_image(tmp_path / "a.png", 1, size=(64, 64))
    write_flat_image(tmp_path / "b.png", 2, size=(64, 64))
    content = (tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(content[: len(content) // 2])
    with pytest.raises(ArcvqError, match=r"cannot read the image .*a\.png"):
        load_images(f"folder:{tmp_path}", split="train", image_size=8)
    (tmp_path / "a.png").write_text("nothing")
    with pytest.raises(ArcvqError, match=r"cannot read the image .*a\.png"):
        load_images(f"folder:{tmp_path}", split="train")
    with pytest.raises(ArcvqError, match="image_size is -1"):
        load_images(f"folder:{tmp_path}", split="train", image_size=-1)


@pytest.mark.parametrize("image_size", [None, 8])
def test_one_error_names_all_unreadable_files(tmp_path: Path, image_size: int | None) -> None:
    for index in range(20):
        write_flat_image(tmp_path / f"{index:02d}.png", index, size=(32, 32))
    for index in range(3, 15):
        content = (tmp_path / f"{index:02d}.png").read_bytes()
        (tmp_path / f"{index:02d}.png").write_bytes(content[:60] if index % 2 else b"text")
    with pytest.raises(ArcvqError, match=r"cannot read 12 images: .*\.png \(not an image\).* and 2 more") as caught:
        load_images(f"folder:{tmp_path}", split="train", image_size=image_size)
    assert sum(f"{index:02d}.png" in str(caught.value) for index in range(20)) == 10


def test_large_folder_error_names_all_files_without_header(tmp_path: Path) -> None:
    for index in range(4):
        write_flat_image(tmp_path / f"{index}.png", index)
    (tmp_path / "1.png").write_text("no image")
    (tmp_path / "2.png").write_bytes(b"")
    with pytest.raises(ArcvqError, match=r"cannot read 2 images: .*1\.png \(not an image\), .*2\.png"):
        load_images(f"folder:{tmp_path}", split="train", image_size=8, memory=0)


def test_folder_and_sample_fit_non_square_size(tmp_path: Path) -> None:
    for index in range(3):
        write_flat_image(tmp_path / f"{index}.png", index, size=(20 + index, 30))
    images = load_images(f"folder:{tmp_path}", split="train", image_size=(8, 16))
    assert images.gather(torch.arange(2)).shape == (2, 3, 8, 16)
    for size in ((8, 16), (16, 8), (28, 28), 12):
        sample = load_images("sample", split="test", image_size=size, limit=4)
        assert (sample.height, sample.width) == (size if isinstance(size, tuple) else (size, size))


def test_limit_spreads_over_classes(tmp_path: Path) -> None:
    for index in range(8):
        write_flat_image(tmp_path / "train" / str(index // 4) / f"{index}.png", index)
    write_flat_image(tmp_path / "test" / "0" / "x.png", 99)
    images = load_images(f"folder:{tmp_path}", split="train", limit=4)
    assert levels(images) == [0, 2, 4, 6]
    assert images.labels is not None
    assert images.labels.tolist() == [0, 0, 1, 1]


def test_large_folder_is_decoded_on_demand(tmp_path: Path) -> None:
    for index in range(30):
        write_flat_image(tmp_path / f"{index:02d}.png", index)
    kept = load_images(f"folder:{tmp_path}", split="train")
    lazy = load_images(f"folder:{tmp_path}", split="train", memory=100 / 2**30)
    assert isinstance(kept, InMemoryImages)
    assert isinstance(lazy, FolderImages)
    assert lazy.gather(torch.tensor([], dtype=torch.int64)).shape == (0, 3, 8, 8)
    assert lazy.pixel_variance() == pytest.approx(kept.pixel_variance(), rel=1e-12)
    assert len(lazy.to("cpu")) == len(kept)
    for options in ({}, {"seed": 3}, {"seed": 3, "start": 2}, {"seed": 3, "rank": 1, "world": 2}):
        from_disk = list(batches(lazy, 8, **options))  # type: ignore[arg-type]
        from_memory = list(batches(kept, 8, **options))  # type: ignore[arg-type]
        assert len(from_disk) == len(from_memory)
        assert all(torch.equal(one, other) for one, other in zip(from_disk, from_memory))


def test_prefetching_error_reaches_caller(tmp_path: Path) -> None:
    for index in range(6):
        write_flat_image(tmp_path / f"{index}.png", index)
    images = load_images(f"folder:{tmp_path}", split="train", image_size=8, memory=0)
    (tmp_path / "3.png").write_text("damaged")
    iterator = batches(images, 2)
    assert next(iterator)[:, 0, 0, 0].tolist() == [0, 1]
    with pytest.raises(ArcvqError, match=r"cannot read the image .*3\.png"):
        next(iterator)


def test_changed_image_size_is_an_error(tmp_path: Path) -> None:
    for index in range(3):
        write_flat_image(tmp_path / f"{index}.png", index)
    images = load_images(f"folder:{tmp_path}", split="train", memory=0)
    write_flat_image(tmp_path / "1.png", 1, size=(9, 7))
    with pytest.raises(ArcvqError, match=r"1\.png is 7x9, but the others are 8x8"):
        images.gather(torch.tensor([0, 1]))


def test_hidden_folders_are_no_classes(tmp_path: Path) -> None:
    for name in ("a/0.png", "b/0.png", ".thumbnails/0.png", "a/.ipynb_checkpoints/0.png", "b/.hidden.png"):
        write_png(tmp_path / "train" / name, torch.zeros(3, 8, 8, dtype=torch.uint8))
        write_png(tmp_path / "test" / name, torch.zeros(3, 8, 8, dtype=torch.uint8))
    images = load_images(f"folder:{tmp_path}", split="train")
    assert len(images) == 2
    assert images.class_names == ["a", "b"]
