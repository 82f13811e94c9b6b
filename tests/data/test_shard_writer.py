"""Writing shards: the same folder gives the same bytes; what is skipped is reported; a killed run leaves no shards."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import webdataset
from PIL import Image
from shard_cases import all_pixels, contents, noise, write_images

from arcvq.data import load_images, read_image, shard_writer, write_png
from arcvq.data.shard_index import open_index
from arcvq.data.shard_writer import ShardOptions, ShardWriter, write_shards
from arcvq.errors import ArcvqError

LOSSLESS = ShardOptions(size=8, format="png")


def test_shards_give_back_the_images_of_the_folder(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "photos", 30, classes=3)
    report = write_shards(folder, tmp_path / "out", ShardOptions(size=8, format="png", shard_size=10_000))
    assert report.images == {"images": 30}
    assert report.shards["images"] == len(list((tmp_path / "out").glob("images-*.tar"))) > 2
    assert all(path.stat().st_size <= 10_000 for path in (tmp_path / "out").glob("*.tar"))
    sets = [load_images(f"{kind}:{path}", split="train", holdout_every=7) for kind, path in
            (("folder", folder), ("shards", tmp_path / "out"))]  # fmt: skip
    assert torch.equal(*map(all_pixels, sets))
    assert sets[0].labels is not None
    assert sets[1].labels is not None
    assert torch.equal(sets[0].labels, sets[1].labels)
    assert [each.class_names for each in sets] == [["class-0", "class-1", "class-2"]] * 2


def test_webdataset_reads_the_shards(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "photos", 6, classes=2)
    write_shards(folder, tmp_path / "out", LOSSLESS)
    samples = list(
        webdataset.WebDataset(str(tmp_path / "out/images-000000.tar"), shardshuffle=False).decode("torchrgb8")
    )
    names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.png"))]
    assert [sample["__key__"] for sample in samples] == [f"{number:06d}" for number in range(6)]
    assert [sample["json"]["name"] for sample in samples] == names
    assert [sample["cls"] for sample in samples] == [0, 0, 0, 1, 1, 1]
    for sample, name in zip(samples, names, strict=True):
        assert torch.equal(sample["png"], read_image(folder / name, 3))


@pytest.mark.parametrize("format", ["jpg", "png", "webp", "keep"])
def test_same_folder_gives_same_bytes(tmp_path: Path, format: str) -> None:
    folder = write_images(tmp_path / "photos", 12, size=(12, 10))
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    for path in copy.iterdir():
        os.utime(path, (5, 5))
    options = ShardOptions(size=8, format=format, shard_size=8_000)  # type: ignore[arg-type]
    write_shards(folder, tmp_path / "one", options)
    write_shards(copy, tmp_path / "two", options)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert len(contents(tmp_path / "one")) > 3


def test_images_are_resized_as_when_a_folder_is_read(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "photos", 4, size=(21, 33))
    write_shards(folder, tmp_path / "out", ShardOptions(size=16, format="png"))
    first = all_pixels(load_images(f"shards:{tmp_path / 'out'}", split="train"))[0]
    assert torch.equal(first, read_image(folder / "00.png", 3, 16))
    write_shards(folder, tmp_path / "whole", ShardOptions(size=16, crop=False, format="png"))
    index = open_index(tmp_path / "whole")
    assert (index.fields["height"][0], index.fields["width"][0]) == (16, 25)
    assert torch.equal(read_image("00", 3, content=index.read(0)), read_image(folder / "00.png", 3, (16, 25)))


def test_keep_stores_the_files_as_they_are(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "photos", 3, size=(9, 5))
    Image.fromarray(noise(7).permute(1, 2, 0).numpy()).save(folder / "03.JPEG")
    write_shards(folder, tmp_path / "out", ShardOptions(format="keep"))
    index = open_index(tmp_path / "out")
    assert [index.read(i) for i in range(4)] == [path.read_bytes() for path in sorted(folder.iterdir())]


def test_report_says_what_was_skipped_and_why(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "photos", 5)
    Image.fromarray(noise(1).permute(1, 2, 0).numpy()).save(folder / "05.bmp")  # the same pixels in another file
    (folder / "06.png").write_text("no image")
    write_png(folder / "07.png", noise(7, 7, 20))
    report = write_shards(folder, tmp_path / "out", ShardOptions(size=8, format="png", dedupe=True))
    assert report.skipped == {
        "05.bmp": "duplicate of 01.png",
        "06.png": "unreadable: not an image",
        "07.png": "too small: its shorter side is below 8",
    }
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (written["skipped"], written["images"]) == (report.skipped, {"images": 5})
    assert written["options"]["dedupe"] is True
    assert open_index(tmp_path / "out").keys == [f"{number:06d}" for number in range(5)]
    assert len(write_shards(folder, tmp_path / "all", LOSSLESS).skipped) == 2


def test_report_has_links_to_no_file_and_counts_other_files(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "photos", 3)
    (folder / "03.png").symlink_to(tmp_path / "absent.png")
    (folder / "04").symlink_to(tmp_path / "absent")
    for name in ("a.txt", "b.TXT", "c.json", ".hidden"):
        (folder / name).write_text("no image")
    report = write_shards(folder, tmp_path / "out", LOSSLESS)
    assert report.images == {"images": 3}
    assert report.skipped == {"03.png": "unreadable: a link to no file"}
    assert report.not_images == {".json": 1, ".txt": 2, "no ending": 1}
    assert json.loads((tmp_path / "out" / "report.json").read_text())["not_images"] == report.not_images


def test_cmyk_palette_grey_and_16_bit_images_are_stored(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    rgb = Image.fromarray(noise(0).permute(1, 2, 0).numpy())
    rgb.convert("CMYK").save(folder / "0.tif")
    rgb.quantize(16).save(folder / "1.png")
    Image.new("I;16", (8, 8), 257 * 40).save(folder / "2.png")
    rgb.convert("L").save(folder / "3.png")
    write_shards(folder, tmp_path / "out", LOSSLESS)
    sets = [load_images(f"{kind}:{path}", split="train", holdout_every=4) for kind, path in
            (("folder", folder), ("shards", tmp_path / "out"))]  # fmt: skip
    assert torch.equal(*map(all_pixels, sets))
    assert open_index(tmp_path / "out").fields["grey"].tolist() == [0, 0, 1, 1]


def test_split_folders_stay_apart_and_share_classes(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    for number, place in enumerate(["train/cat/a", "train/owl/b", "test/owl/c", "test/owl/d"]):
        write_png(folder / f"{place}.png", noise(min(number, 2)))
    report = write_shards(folder, tmp_path / "out", ShardOptions(size=8, format="png", dedupe=True))
    assert (report.images, report.skipped) == (
        {"train": 2, "test": 1},
        {"test/owl/d.png": "duplicate of test/owl/c.png"},
    )
    test = load_images(f"shards:{tmp_path / 'out'}", split="test")
    assert test.labels is not None
    assert (test.labels.tolist(), test.class_names) == ([1], ["cat", "owl"])


def test_killed_run_leaves_no_shards_and_the_next_cleans_up(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "photos", 12)
    code = """
import os, signal, sys
from pathlib import Path
from arcvq.data.shard_writer import ShardOptions, write_shards
def kill(done, total):
    if done == 9:
        os.kill(os.getpid(), signal.SIGKILL)
write_shards(Path(sys.argv[1]), Path(sys.argv[2]), ShardOptions(size=8, format="png", shard_size=4000), progress=kill)
"""
    done = subprocess.run([sys.executable, "-c", code, folder, tmp_path / "out"], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    assert len(list((tmp_path / ".out.partial").glob("*.tar"))) > 1
    with pytest.raises(ArcvqError, match="no such folder"):
        load_images(f"shards:{tmp_path / 'out'}", split="train")
    with pytest.raises(ArcvqError, match="truncated"):
        load_images(f"shards:{tmp_path / '.out.partial'}", split="train")
    write_shards(folder, tmp_path / "out", ShardOptions(size=8, format="png", shard_size=4000))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "photos"]
    write_shards(folder, tmp_path / "other", ShardOptions(size=8, format="png", shard_size=4000))
    assert contents(tmp_path / "out") == contents(tmp_path / "other")


def test_failed_run_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_images(tmp_path / "photos", 3)

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shard_writer.os, "utime", full)
    with pytest.raises(ArcvqError, match="the disk is full"):
        write_shards(folder, tmp_path / "out", LOSSLESS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos"]


def test_folder_that_is_not_empty_is_not_written_to(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "photos", 3)
    with pytest.raises(ArcvqError, match="photos: exists and is not empty: choose another --out"):
        write_shards(folder, folder, LOSSLESS)
    assert len(list(folder.iterdir())) == 3


def test_folder_without_usable_image_is_refused(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "photos", 2)
    with pytest.raises(ArcvqError, match=r"no image of .* is left .*: 00\.png is too small"):
        write_shards(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("options", [{"format": "gif"}, {"size": 0}, {"quality": 101}, {"shard_size": 0}])
def test_wrong_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ArcvqError, match=f"{next(iter(options))} "):
        ShardOptions(**options)  # type: ignore[arg-type]


def test_long_and_foreign_names_survive(tmp_path: Path) -> None:
    key = "größer/" + "x" * 150
    with ShardWriter(tmp_path, "a", 1 << 20) as writer:
        writer.add(key, {"png": (write_images(tmp_path / "photos", 1) / "00.png").read_bytes()})
    assert open_index(tmp_path).keys == [key]
    (sample,) = webdataset.WebDataset(str(tmp_path / "a-000000.tar"), shardshuffle=False)
    assert sample["__key__"] == key
