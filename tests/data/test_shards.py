"""Reading tar shards: any image in any order, exactly; damaged and changed shards are noticed."""

import gzip
import json
import os
import tarfile
import warnings
from itertools import islice
from pathlib import Path
from typing import Literal

import pytest
import safetensors.numpy
import torch
import webdataset
from safetensors import safe_open
from shard_cases import all_pixels, noise, png, write_numbered, write_tar

from arcvq.data import ImageSource, InMemoryImages, load_images, shard_index
from arcvq.data.shard_index import IMAGES, INDEX, ShardIndex, choose_file, open_index
from arcvq.data.shards import ShardImages
from arcvq.data.tar import Member, read_members
from arcvq.errors import ArcvqError

COUNT = 24


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """COUNT images in three shards."""
    for shard in range(3):
        write_numbered(tmp_path / "shards" / f"part-{shard}.tar", range(8 * shard, 8 * shard + 8))
    return tmp_path / "shards"


def both_splits(folder: Path, **options: object) -> dict[int, torch.Tensor]:
    """The pixels of all images by number, which is found by comparing them."""
    found = {}
    for split in ("train", "test"):
        images = load_images(f"shards:{folder}", split=split, **options)  # type: ignore[arg-type]
        for pixels in all_pixels(images):
            (number,) = [number for number in range(COUNT) if torch.equal(noise(number), pixels)]
            assert number not in found
            found[number] = pixels
    return found


@pytest.mark.parametrize("memory", [0, 1], ids=["on demand", "in memory"])
def test_every_image_is_in_one_split_with_its_label(folder: Path, memory: float) -> None:
    assert sorted(both_splits(folder, memory=memory)) == list(range(COUNT))
    images = load_images(f"shards:{folder}", split="train", holdout_every=3, memory=memory)
    assert isinstance(images, InMemoryImages if memory else ShardImages)
    numbers = [number for number in range(COUNT) if number % 3 != 2]
    assert torch.equal(all_pixels(images), torch.stack([noise(number) for number in numbers]))
    assert images.labels is not None
    assert images.labels.tolist() == [number % 3 for number in numbers]
    assert images.name == f"shards:{folder}"


def test_shards_of_webdataset_are_read(tmp_path: Path) -> None:
    """Written by webdataset's own writer, with JPEG, JSON and names in folders and with further endings."""
    pattern = str(tmp_path / "shard-%06d.tar")
    with webdataset.ShardWriter(pattern, maxcount=5, verbose=0) as writer:
        for number in range(12):
            sample = {"__key__": f"deep/er/{number:03d}", "png": noise(number).permute(1, 2, 0).numpy(), "cls": number}
            writer.write({**sample, "seg.png": png(noise(99)), "json": {"label": 7}, "txt": "words"})
    assert len(list(tmp_path.glob("*.tar"))) == 3
    images = load_images(f"shards:{tmp_path}", split="train", holdout_every=12, memory=0)
    assert torch.equal(all_pixels(images), torch.stack([noise(number) for number in range(11)]))
    assert images.labels is not None
    assert images.labels.tolist() == list(range(11))
    assert isinstance(images, ShardImages)
    own = webdataset.WebDataset(sorted(map(str, tmp_path.glob("*.tar"))), shardshuffle=False)
    assert images.index.keys == [sample["__key__"] for sample in own]
    assert [images.index.read(i) for i in range(12)] == [sample["png"] for sample in own]


def test_labels_come_from_json_without_cls(tmp_path: Path) -> None:
    files = {f"{n}.{end}": data for n in range(3) for end, data in (("png", png(noise(n))), ("json", b'{"label": 5}'))}
    write_tar(tmp_path / "a.tar", files)
    images = load_images(f"shards:{tmp_path}", split="train")
    assert images.labels is not None
    assert images.labels.tolist() == [5, 5]


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(
    ("ending", "content"),
    [
        ("json", b'{"label": "cat"}'),
        ("json", b'{"label": true}'),
        ("json", b'{"label": -1}'),
        ("json", b"{"),
        ("cls", b"cat"),
        ("cls", b"9" * 30),
        ("json", b'{"label": null}'),
        ("json", b'{"caption": "a cat"}'),
        ("json", b'[{"label": 5}]'),
        ("txt", b"a cat"),
    ],
)
def test_set_labelled_in_part_counts_as_unlabelled(
    tmp_path: Path, split: Literal["train", "test"], ending: str, content: bytes
) -> None:
    files = {f"{n}.{end}": data for n in range(3) for end, data in (("png", png(noise(n))), ("cls", b"5"))}
    write_tar(tmp_path / "a.tar", {**files, "9.png": png(noise(9)), f"9.{ending}": content})
    message = "1 of 4 images have no label that is a whole number from 0"
    for _ in range(2):  # with a new index, and with the kept one
        with pytest.warns(UserWarning, match=message):
            images = load_images(f"shards:{tmp_path}", split=split, holdout_every=2)
        assert images.labels is None
        assert torch.equal(all_pixels(images), torch.stack([noise(n) for n in ((0, 2), (1, 9))[split == "test"]]))


def test_labels_that_are_text_count_as_none(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {f"{n}.{end}": data for n in range(3) for end, data in
                                   (("png", png(noise(n))), ("json", b'{"label": "cat"}'))})  # fmt: skip
    with pytest.warns(UserWarning, match="3 of 3 images have no label that is a whole number"):
        assert load_images(f"shards:{tmp_path}", split="train").labels is None


@pytest.mark.parametrize("content", [b'[{"label": 5}]', b'{"caption": "a cat"}', b'{"label": null}'])
def test_json_without_label_is_no_reason_to_warn(tmp_path: Path, content: bytes) -> None:
    write_tar(
        tmp_path / "a.tar",
        {f"{n}.{end}": data for n in range(3) for end, data in (("png", png(noise(n))), ("json", content))},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_images(f"shards:{tmp_path}", split="train").labels is None


def test_images_with_extensions_of_several_parts_are_read(tmp_path: Path) -> None:
    """As the package webdataset reads them: the last part of the extension is the type."""
    files = {}
    for number in range(4):
        key = f"deep/{number}"
        files |= {f"{key}.depth.png": png(noise(99)), f"{key}.image.PNG": png(noise(number)), f"{key}.image.txt": b""}
    write_tar(tmp_path / "a.tar", files)
    images = load_images(f"shards:{tmp_path}", split="train", holdout_every=4, memory=0)
    assert torch.equal(all_pixels(images), torch.stack([noise(number) for number in range(3)]))
    assert isinstance(images, ShardImages)
    own = list(webdataset.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False).decode("torchrgb8"))
    assert images.index.keys == [sample["__key__"] for sample in own]
    # webdataset makes all extensions lower-case.
    assert torch.equal(all_pixels(images), torch.stack([sample["image.png"] for sample in own[:3]]))


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["seg.png", "png"], "png"),
        (["mask.png", "image.jpg", "zoom.png"], "image.jpg"),
        (["left.png", "right.png"], "left.png"),
        (["jpg", "png"], "jpg"),
        (["image.json", "txt"], None),
    ],
)
def test_one_image_of_a_sample_is_chosen_by_its_name(names: list[str], chosen: str | None) -> None:
    found = choose_file([Member("0", name, 512, 1, 0) for name in names], IMAGES)
    assert (found.ending if found else None) == chosen


def test_split_folders_are_the_splits(tmp_path: Path) -> None:
    write_numbered(tmp_path / "train" / "a.tar", range(3))
    write_numbered(tmp_path / "val" / "a.tar", range(3, 5))
    assert torch.equal(all_pixels(load_images(f"shards:{tmp_path}", split="test")), torch.stack([noise(3), noise(4)]))
    assert len(load_images(f"shards:{tmp_path}", split="train")) == 3
    with pytest.raises(ArcvqError, match="has a test split of its own: leave data"):
        load_images(f"shards:{tmp_path}", split="test", holdout_every=2)


def test_images_are_fitted_to_image_size_as_in_a_folder(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / "folder").mkdir(exist_ok=True)
        (tmp_path / "folder" / f"{number}.png").write_bytes(png(noise(number, 20 + number, 33)))
    files = {path.name: path.read_bytes() for path in sorted((tmp_path / "folder").iterdir())}
    write_tar(tmp_path / "shards" / "a.tar", files)
    sets = [
        load_images(f"{kind}:{tmp_path / name}", split="train", image_size=(8, 12), holdout_every=4)
        for kind, name in (("folder", "folder"), ("shards", "shards"))
    ]
    assert torch.equal(*map(all_pixels, sets))
    with pytest.raises(ArcvqError, match=r"images differ in size .* give an image_size"):
        load_images(f"shards:{tmp_path / 'shards'}", split="train")


def test_batches_equal_those_of_memory_from_any_start_and_on_two_processes(folder: Path) -> None:
    in_memory = load_images(f"shards:{folder}", split="train")
    lazy = load_images(f"shards:{folder}", split="train", memory=0)
    sources = [ImageSource(images, 5) for images in (in_memory, lazy)]
    for options in ({}, {"first": 3}, {"first": 7}, {"rank": 1, "world": 2}):
        batches = [
            [source.fetch(batch) for batch in islice(source.batches(seed=3, **options), 8)] for source in sources
        ]
        for one, other in zip(*batches, strict=True):
            assert torch.equal(one["image"], other["image"])
            assert torch.equal(one["label"], other["label"])


def test_pixel_variance_and_limit_work(folder: Path) -> None:
    images = load_images(f"shards:{folder}", split="train", limit=4, holdout_every=4, memory=0)
    assert torch.equal(all_pixels(images), torch.stack([noise(number) for number in (0, 5, 12, 17)]))
    levels = all_pixels(images).double() / 127.5 - 1
    assert images.pixel_variance() == pytest.approx(levels.var(correction=0).item(), rel=1e-10)
    assert len(images.to("cpu")) == 4


def test_index_is_reused_until_a_shard_changes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = open_index(folder)
    assert (folder / INDEX).is_file()
    with monkeypatch.context() as patch:
        patch.setattr(shard_index, "build_index", lambda *_: pytest.fail("the index is made again"))
        again = open_index(folder)
    assert again.keys == index.keys
    assert all((again.fields[name] == index.fields[name]).all() for name in index.fields)

    size = (folder / "part-1.tar").stat().st_size
    write_numbered(folder / "part-1.tar", range(11, 19))
    os.utime(folder / "part-1.tar", (1, 1))  # the same size, another time
    assert (folder / "part-1.tar").stat().st_size == size
    assert open_index(folder).keys[8] == "0011"
    write_numbered(folder / "part-3.tar", range(30, 32))
    assert len(open_index(folder)) == COUNT + 2
    (folder / INDEX).write_bytes((folder / INDEX).read_bytes()[:200])
    assert len(open_index(folder)) == COUNT + 2


def test_index_of_folder_without_permission_is_cached(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = ShardIndex.save

    def refuse_beside(index: ShardIndex, path: Path) -> None:
        if path.parent == folder:
            raise ArcvqError(f"{path}: no permission to write there")
        save(index, path)

    monkeypatch.setattr(ShardIndex, "save", refuse_beside)
    open_index(folder)
    assert not (folder / INDEX).exists()
    monkeypatch.setattr(shard_index, "build_index", lambda *_: pytest.fail("the index is made again"))
    assert len(open_index(folder)) == COUNT


def test_index_that_points_outside_its_shards_is_made_again(folder: Path) -> None:
    index = open_index(folder)
    for name, value in (("offset", 1 << 40), ("offset", 0), ("shard", 7), ("length", -1), ("length", 1 << 40)):
        forged = ShardIndex(folder, index.shards, {k: v.copy() for k, v in index.fields.items()}, index.keys)
        forged.fields[name][3] = value
        forged.save(folder / INDEX)
        assert ShardIndex.load(folder / INDEX, folder) is None
        assert (open_index(folder).fields[name] == index.fields[name]).all()


@pytest.mark.parametrize(
    "about",
    [
        {"shards": [1]},
        {"shards": [{"bytes": 9**9}]},
        {"class_names": [1, 2, 3]},
        {"class_names": ["a"]},
        {"format": "x"},
    ],
)
def test_index_with_strange_content_is_made_again(folder: Path, about: dict[str, object]) -> None:
    index = open_index(folder)
    with safe_open(folder / INDEX, "np") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        whole = json.loads(file.metadata()["about"])
    (folder / INDEX).write_bytes(safetensors.numpy.save(arrays, {"about": json.dumps({**whole, **about})}))
    assert ShardIndex.load(folder / INDEX, folder) is None
    assert open_index(folder).keys == index.keys


def test_shard_that_changes_while_in_use_is_noticed(folder: Path) -> None:
    images = load_images(f"shards:{folder}", split="train", on_error="skip", memory=0)
    write_numbered(folder / "part-0.tar", range(50, 58))
    with pytest.raises(ArcvqError, match=r"part-0\.tar: the shard was changed while in use"):
        images.gather(torch.arange(3))
    (folder / "part-0.tar").unlink()
    with pytest.raises(ArcvqError, match=r"part-0\.tar: the shard cannot be read \(No such file"):
        images.gather(torch.arange(3))


@pytest.mark.parametrize("place", ["in a header", "in a file", "between two files", "after the last file"])
def test_truncated_shard_is_refused(folder: Path, place: str) -> None:
    path = folder / "part-1.tar"
    members = list(read_members(path))
    ends = [-(-(member.offset + member.length) // 512) * 512 for member in members]
    size = {
        "in a header": members[4].offset - 100,
        "in a file": members[4].offset + 20,
        "between two files": ends[5],
        "after the last file": ends[-1],
    }[place]
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ArcvqError, match=r"part-1\.tar: .*truncated") as caught:
        load_images(f"shards:{folder}", split="train")
    assert "\n" not in str(caught.value)


def test_wrong_shard_folders_are_refused_in_one_line(tmp_path: Path, folder: Path) -> None:
    def refusal(path: Path) -> str:
        with pytest.raises(ArcvqError) as caught:
            load_images(f"shards:{path}", split="train")
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "no such folder" in refusal(tmp_path / "absent")
    assert f"no shards in {tmp_path}; expected files ending in .tar" in refusal(tmp_path)
    write_tar(tmp_path / "words" / "a.tar", {"0.txt": b"words"})
    assert "no samples in the shards" in refusal(tmp_path / "words")
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "header.json").write_text("{}")
    assert "holds shards of tokens, not of images" in refusal(tmp_path / "tokens")
    large = tarfile.TarInfo("0.cls")
    large.size = 1 << 60
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "a.tar").write_bytes(large.tobuf() + bytes(1024))
    assert "truncated" in refusal(tmp_path / "large")
    (tmp_path / "junk").mkdir()
    (tmp_path / "junk" / "a.tar").write_bytes(b"no tar file " * 100)
    assert "damaged, truncated or not a tar file" in refusal(tmp_path / "junk")
    packed = gzip.compress((folder / "part-0.tar").read_bytes())
    (tmp_path / "junk" / "a.tar").write_bytes(packed)
    assert "a.tar: is compressed with gzip" in refusal(tmp_path / "junk")
    (folder / "part-9.tar.gz").write_bytes(packed)
    assert "part-9.tar.gz: is compressed" in refusal(folder)
    (folder / "part-9.tar.gz").unlink()
    open_index(folder)
    (folder / "part-0.tar").unlink()
    assert "part-0.tar: the shard is missing: bring it back" in refusal(folder)
    with pytest.raises(ArcvqError, match="shards: needs a path"):
        load_images("shards:", split="train")


def test_samples_without_image_are_left_out_with_a_warning(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"0.png": png(noise(0)), "1.txt": b"", "2.png": png(noise(2)), "__meta__.txt": b""})
    with pytest.warns(UserWarning, match="1 samples of the shards hold no image and were left out"):
        assert open_index(tmp_path).keys == ["0", "2"]


def test_unreadable_images_of_shards_are_named(tmp_path: Path) -> None:
    whole = png(noise(7, 64, 64))
    files = {f"{number}.png": png(noise(number, 64, 64)) for number in range(6)}
    write_tar(tmp_path / "a.tar", {**files, "3.png": b"no image", "4.png": whole[: len(whole) // 2]})
    for memory in (0, 1):
        with pytest.raises(ArcvqError, match=r"cannot read 2 images: .*a\.tar/3 .*a\.tar/4"):
            load_images(f"shards:{tmp_path}", split="train", holdout_every=6, memory=memory)
