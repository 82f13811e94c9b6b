"""Images packed into shards, encoded to token shards, and decoded, from the command line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Arcvq = Callable[..., Any]


@pytest.fixture
def shards(arcvq: Arcvq, images: Path, tmp_path: Path) -> Path:
    """The four images in shards."""
    result = arcvq("shard", images, "--out", tmp_path / "shards", "--size", "28", "--format", "png")
    assert (result.code, result.errors) == (0, "")
    assert result.output == f"{tmp_path / 'shards'}: 4 images in 1 shards, 0 skipped (report.json)\n"
    return tmp_path / "shards"


def refused(arcvq: Arcvq, *arguments: object) -> str:
    """The one line of a command that must fail."""
    result = arcvq(*arguments)
    assert (result.code, result.output, result.errors.count("\n")) == (2, "", 1)
    return str(result.errors)


def test_shard_reports_as_json_what_it_skipped(arcvq: Arcvq, images: Path, tmp_path: Path) -> None:
    (images / "image-4.png").write_bytes((images / "image-0.png").read_bytes())
    (images / "image-5.png").write_text("no image")
    result = arcvq(
        "shard", images, "--out", tmp_path / "out", "--size", "20", "--no-crop", "--dedupe", "--shard-size", "4000",
        "--format", "webp", "--quality", "80", "--json",
    )  # fmt: skip
    assert (result.code, result.errors) == (0, "")
    report = json.loads(result.output)
    assert report["images"] == {"images": 4}
    assert report["shards"]["images"] > 1
    assert report["skipped"] == {
        "image-4.png": "duplicate of image-0.png",
        "image-5.png": "unreadable: not an image",
    }
    options = json.loads((tmp_path / "out" / "report.json").read_text())["options"]
    assert options == {
        "size": 20, "crop": False, "dedupe": True, "shard_size": 4000, "format": "webp", "quality": 80,
    }  # fmt: skip


def test_shard_counts_other_files(arcvq: Arcvq, images: Path, tmp_path: Path) -> None:
    (images / "notes.txt").write_text("words")
    (images / "gone.png").symlink_to(images / "absent.png")
    result = arcvq("shard", images, "--out", tmp_path / "out", "--size", "20", "--format", "png")
    assert (result.code, result.errors) == (0, "")
    assert result.output.endswith("4 images in 1 shards, 1 skipped, 1 other files left out (report.json)\n")
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (report["skipped"], report["not_images"]) == ({"gone.png": "unreadable: a link to no file"}, {".txt": 1})


def test_folder_of_tar_files_is_named_as_shards(arcvq: Arcvq, shards: Path, tmp_path: Path) -> None:
    (shards / "index.safetensors").unlink()
    (tmp_path / "split" / "train").mkdir(parents=True)
    (tmp_path / "split" / "train" / "a.tar").write_bytes((shards / "images-000000.tar").read_bytes())
    for folder in (shards, tmp_path / "split"):
        for out in ("tokens", "tokens.npz"):
            line = refused(arcvq, "encode", "tiny", folder, "--out", tmp_path / out)
            assert f"tar files: write shards:{folder}" in line
    assert arcvq("encode", "tiny", f"shards:{shards}", "--out", tmp_path / "tokens").code == 0


def test_wrong_shard_arguments_are_refused(arcvq: Arcvq, images: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "out")
    assert "no such folder" in refused(arcvq, "shard", tmp_path / "absent", *out)
    assert "leave --size out" in refused(arcvq, "shard", images, *out, "--format", "keep", "--size", "20")
    assert "quality is 200" in refused(arcvq, "shard", images, *out, "--quality", "200")
    assert "is too small" in refused(arcvq, "shard", images, *out)
    assert "exists and is not empty" in refused(arcvq, "shard", images, "--out", images)
    assert not (tmp_path / "out").exists()


def test_token_shards_decode_to_the_images_of_a_token_file(
    arcvq: Arcvq, shards: Path, images: Path, tmp_path: Path
) -> None:
    encoded = arcvq("encode", "tiny", f"shards:{shards}", "--out", tmp_path / "tokens")
    assert (encoded.code, encoded.errors) == (0, "")
    assert encoded.output == f"{tmp_path / 'tokens'}: 4 images as 7×7 tokens each in 1 shards\n"
    again = arcvq("encode", "tiny", shards, "--out", tmp_path / "tokens")
    assert again.output.endswith("in 1 shards, 1 of them were there\n")
    printed = json.loads(arcvq("encode", "tiny", shards, "--out", tmp_path / "tokens", "--json").output)
    assert printed == {"folder": str(tmp_path / "tokens"), "images": 4, "shards": 1, "grid": [7, 7], "skipped": {}}
    decoded = arcvq("decode", "tiny", tmp_path / "tokens", "--out", tmp_path / "decoded", "--batch-size", "4")
    assert decoded.output.splitlines() == [str(tmp_path / "decoded" / f"{i:06d}.png") for i in range(4)]
    tiled = arcvq("decode", "tiny", tmp_path / "tokens", "--out", tmp_path / "tiled", "--tile", "32")
    assert (tiled.code, len(tiled.output.splitlines())) == (0, 4)  # an image of 28×28 is one tile
    assert (tmp_path / "tiled" / "000003.png").read_bytes() == (tmp_path / "decoded" / "000003.png").read_bytes()
    arcvq("encode", "tiny", images, "--out", tmp_path / "tokens.npz")
    arcvq("decode", "tiny", tmp_path / "tokens.npz", "--out", tmp_path / "expected")
    for i in range(4):
        one, other = tmp_path / "decoded" / f"{i:06d}.png", tmp_path / "expected" / f"image-{i}.png"
        assert one.read_bytes() == other.read_bytes()


def test_wrong_arguments_for_shards_are_refused(arcvq: Arcvq, shards: Path, images: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "out")
    assert "leave --batch-size out" in refused(arcvq, "encode", "tiny", shards, *out, "--batch-size", "2")
    for option in (("--size", "original"), ("--tile", "64")):
        assert "leave --size and --tile out" in refused(arcvq, "encode", "tiny", shards, *out, *option)
    assert "shards are encoded alone" in refused(arcvq, "encode", "tiny", shards, images, *out)
    assert "give --out the name of a folder" in refused(arcvq, "encode", "tiny", shards, "--out", tmp_path / "a.npz")
    assert "no such folder" in refused(arcvq, "encode", "tiny", "shards:absent", *out)
    assert "name ends in .npz" in refused(arcvq, "encode", "tiny", images, *out)
    assert "not a folder of token shards" in refused(arcvq, "decode", "tiny", shards, *out)
    assert not (tmp_path / "out").exists()


def test_run_on_shards_is_evaluated_from_anywhere(
    arcvq: Arcvq, shards: Path, tmp_path: Path, tiny_settings: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = tiny_settings({"data.name": "shards:shards", "data.batch_size": 2, "data.limit": None})
    result = arcvq("train", "sample/vq-vae", *settings, "--data.holdout_every", "4", "--out", "run", "--quiet")
    assert (result.code, result.errors) == (0, "")
    monkeypatch.chdir("/")
    measured = arcvq("evaluate", tmp_path / "run", "--metrics", "psnr", "--json")
    document = json.loads(measured.output)
    assert (document["data"], document["protocols"]["exact"]["images"]) == (f"shards:{shards}", 1)
