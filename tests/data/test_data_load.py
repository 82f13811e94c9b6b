import gzip
import pickle
import struct
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from build_sample import sample_content

from arcvq.data import InMemoryImages, cifar, data_names, data_root, embedded, hold_out, idx, load_images
from arcvq.data import download as downloading
from arcvq.errors import ArcvqError


def write_idx(path: Path, array: np.ndarray) -> None:
    content = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_idx_set(
    root: Path, folder: str = "MNIST", prefix: str = "train", suffix: str = "", count: int = 5
) -> np.ndarray:
    pixels = np.random.default_rng(0).integers(0, 256, (count, 28, 28), dtype=np.uint8)
    write_idx(root / folder / "raw" / f"{prefix}-images-idx3-ubyte{suffix}", pixels)
    write_idx(root / folder / "raw" / f"{prefix}-labels-idx1-ubyte{suffix}", np.arange(count, dtype=np.uint8))
    return pixels


def write_cifar_set(root: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Five training files and one test file of 3 records each."""
    monkeypatch.setattr(cifar, "IMAGES_PER_FILE", 3)
    records = np.random.default_rng(1).integers(0, 256, (18, cifar.RECORD), dtype=np.uint8)
    records[:, 0] %= 10
    folder = root / "cifar-10-batches-bin"
    folder.mkdir()
    for index, name in enumerate([*cifar.BINARY_FILES["train"], *cifar.BINARY_FILES["test"]]):
        (folder / name).write_bytes(records[3 * index : 3 * index + 3].tobytes())
    return records


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
@pytest.mark.parametrize(("split", "prefix"), [("train", "train"), ("test", "t10k")])
def test_idx_files_load_in_all_layouts(
    tmp_path: Path, suffix: str, name: str, folder: str, split: str, prefix: str
) -> None:
    expected = write_idx_set(tmp_path, folder, prefix, suffix)
    images = load_images(name, split=split, root=tmp_path, download=False)  # type: ignore[arg-type]
    assert (len(images), images.channels, images.height, images.width, images.name) == (5, 1, 28, 28, name)
    assert torch.equal(images.gather(torch.arange(5)), torch.from_numpy(expected)[:, None])
    assert images.labels is not None
    assert images.labels.tolist() == [0, 1, 2, 3, 4]


def test_gzipped_file_is_not_unpacked_beyond_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_idx_set(tmp_path, suffix=".gz", count=1000)
    monkeypatch.setattr(idx, "MAX_BYTES", 5000)
    with pytest.raises(ArcvqError, match=r"images-idx3-ubyte\.gz holds 5000 bytes"):
        load_images("mnist", split="train", root=tmp_path, download=False)


def test_data_root_comes_from_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_idx_set(tmp_path)
    monkeypatch.setenv("ARCVQ_DATA", str(tmp_path))
    assert len(load_images("mnist", split="train", download=False)) == 5
    monkeypatch.delenv("ARCVQ_DATA")
    assert data_root() == Path.home() / ".cache" / "arcvq" / "data"


def test_cifar_binary_files_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = write_cifar_set(tmp_path, monkeypatch)
    train = load_images("cifar10", split="train", root=tmp_path, download=False)
    test = load_images("cifar10", split="test", root=tmp_path, download=False)
    assert (len(train), len(test), train.channels, train.height) == (15, 3, 3, 32)
    # A record is a label byte, then 1024 red, 1024 green and 1024 blue bytes, row by row.
    green = test.gather(torch.tensor([1]))[0, 1]
    assert torch.equal(green, torch.from_numpy(records[16, 1 + 1024 : 1 + 2048].reshape(32, 32).copy()))
    assert train.labels is not None
    assert train.labels.tolist() == records[:15, 0].tolist()


def test_damaged_files_error_names_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_idx_set(tmp_path)
    image_file = tmp_path / "MNIST/raw/train-images-idx3-ubyte"
    label_file = tmp_path / "MNIST/raw/train-labels-idx1-ubyte"
    whole = image_file.read_bytes()

    image_file.write_bytes(whole[:-1])
    with pytest.raises(ArcvqError, match=r"train-images-idx3-ubyte holds 3935 bytes"):
        load_images("mnist", split="train", root=tmp_path, download=False)
    image_file.write_bytes(b"\x1f\x8b\x08\x00" + whole[4:])
    with pytest.raises(ArcvqError, match=r"train-images-idx3-ubyte is not an idx file .*begins 1f8b0800"):
        load_images("mnist", split="train", root=tmp_path, download=False)
    image_file.write_bytes(whole)
    write_idx(label_file, np.zeros(4, dtype=np.uint8))
    with pytest.raises(ArcvqError, match=r"has 5 images but .* has 4 labels"):
        load_images("mnist", split="train", root=tmp_path, download=False)

    write_idx_set(tmp_path, "FashionMNIST", suffix=".gz")
    packed = tmp_path / "FashionMNIST/raw/train-images-idx3-ubyte.gz"
    packed.write_bytes(packed.read_bytes()[:100])
    with pytest.raises(ArcvqError, match=r"cannot read .*idx3-ubyte\.gz .*fetch it again"):
        load_images("fashion-mnist", split="train", root=tmp_path, download=False)

    write_cifar_set(tmp_path, monkeypatch)
    path = tmp_path / "cifar-10-batches-bin/test_batch.bin"
    content = path.read_bytes()
    path.write_bytes(content[: cifar.RECORD])
    with pytest.raises(ArcvqError, match=r"test_batch\.bin holds 3073 bytes, expected 9219"):
        load_images("cifar10", split="test", root=tmp_path, download=False)
    path.write_bytes(b"\x0b" + content[1:])
    with pytest.raises(ArcvqError, match=r"test_batch\.bin has a label 11"):
        load_images("cifar10", split="test", root=tmp_path, download=False)
    path.unlink()
    with pytest.raises(ArcvqError, match=r"cannot read .*test_batch\.bin \(No such file"):
        load_images("cifar10", split="test", root=tmp_path, download=False)


class CreatesFile:
    """Its unpickling creates a file."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Path.touch, (Path("unpickled"),))  # type: ignore[return-value]


def test_foreign_pickle_is_never_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cifar-10-batches-py").mkdir()
    for name in ("test_batch", "batches.meta", *(f"data_batch_{index}" for index in range(1, 6))):
        (tmp_path / "cifar-10-batches-py" / name).write_bytes(pickle.dumps(CreatesFile()))
    with pytest.raises(ArcvqError, match=r"cannot read .*cifar-10-batches-py"):
        load_images("cifar10", split="test", root=tmp_path, download=False)
    assert not (tmp_path / "unpickled").exists()


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_absent_set_error_names_files_and_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArcvqError, match="downloading is off") as caught:
        load_images(name, split="test", root=tmp_path, download=False)
    line = str(caught.value)
    assert str(tmp_path) in line
    assert "ARCVQ_DATA" in line
    assert {"mnist": "MNIST/raw/t10k-images-idx3-ubyte", "cifar10": "cifar-10-batches-bin/test_batch.bin"}.get(
        name, "FashionMNIST/raw/t10k-labels-idx1-ubyte"
    ) in line


def test_failed_download_is_one_line_and_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(root: str, download: bool) -> None:
        (Path(root) / "MNIST").mkdir()
        raise RuntimeError("Error downloading train-images-idx3-ubyte.gz:\nTried https://example.invalid")

    monkeypatch.setattr(downloading, "torchvision_class", lambda name: unreachable)
    with pytest.raises(
        ArcvqError, match=r"the download failed: Error downloading train-images-idx3-ubyte\.gz"
    ) as caught:
        load_images("mnist", split="train", root=tmp_path)
    assert "\n" not in str(caught.value)
    assert "MNIST/raw/train-images-idx3-ubyte" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_download_moves_files_to_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetched(root: str, download: bool) -> None:
        assert download
        write_idx_set(Path(root), prefix="train")
        write_idx_set(Path(root), prefix="t10k")

    monkeypatch.setattr(downloading, "torchvision_class", lambda name: fetched)
    assert len(load_images("mnist", split="test", root=tmp_path / "new")) == 5
    assert [entry.name for entry in (tmp_path / "new").iterdir()] == ["MNIST"]


def test_torchvision_classes_exist() -> None:
    assert [downloading.torchvision_class(name).__name__ for name in ("mnist", "fashion-mnist", "cifar10")] == [
        "MNIST",
        "FashionMNIST",
        "CIFAR10",
    ]


def test_sample_is_balanced_and_loads_fast() -> None:
    embedded.sample_bytes.cache_clear()
    embedded.load_sample.cache_clear()
    started = time.process_time()
    train, test = load_images("sample", split="train"), load_images("sample", split="test")
    assert time.process_time() - started < 2.0
    assert (len(train), len(test), train.channels, train.height, train.width) == (10_000, 2_000, 1, 28, 28)
    assert train.labels is not None
    assert test.labels is not None
    assert train.labels.bincount().tolist() == [1_000] * 10
    assert test.labels.bincount().tolist() == [200] * 10
    assert load_images("sample", split="train") is train


def test_build_sample_reproduces_sample(tmp_path: Path) -> None:
    # From the sample written as published files, the builder picks the sample.
    for split, prefix in (("train", "train"), ("test", "t10k")):
        images = load_images("sample", split=split)  # type: ignore[arg-type]
        assert isinstance(images, InMemoryImages)
        assert images.labels is not None
        raw = tmp_path / "FashionMNIST" / "raw"
        write_idx(raw / f"{prefix}-images-idx3-ubyte", images.pixels[:, 0].numpy())
        write_idx(raw / f"{prefix}-labels-idx1-ubyte", images.labels.to(torch.uint8).numpy())
    # The content is compared: another version of the compressor may write other bytes.
    assert sample_content(tmp_path) == embedded.sample_bytes()
    folder = Path(embedded.__file__).parent / "sample"
    assert sum(path.stat().st_size for path in folder.iterdir()) < 6_000_000


def test_damaged_sample_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "SHA256", "0" * 64)
    embedded.sample_bytes.cache_clear()
    embedded.load_sample.cache_clear()
    with pytest.raises(ArcvqError, match=r"the embedded sample .* is damaged; reinstall arcvq"):
        load_images("sample", split="train")


def test_limit_and_image_size_are_applied() -> None:
    whole = load_images("sample", split="test")
    few = load_images("sample", split="test", limit=7, image_size=32)
    assert (len(few), few.height, few.width) == (7, 32, 32)
    assert torch.equal(
        load_images("sample", split="test", limit=7).gather(torch.arange(7)), whole.gather(torch.arange(7))
    )
    assert len(load_images("sample", split="test", limit=10**6)) == 2_000
    # Resizing keeps the brightness.
    assert abs(few.gather(torch.arange(7)).float().mean() - whole.gather(torch.arange(7)).float().mean()) < 1.0


def test_pixel_variance_is_exact() -> None:
    images = load_images("sample", split="test")
    pixels = images.gather(torch.arange(len(images))).long()
    count, total, squares = pixels.numel(), int(pixels.sum()), int(pixels.square().sum())
    # Integers, with one division at the end.
    expected = (count * squares - total * total) / (count * count) / 127.5**2
    assert images.pixel_variance() == pytest.approx(expected, rel=1e-13)


def test_in_memory_images_refuse_wrong_tensors() -> None:
    with pytest.raises(ArcvqError, match=r"uint8 \(N, C, H, W\), but toy has torch\.float32"):
        InMemoryImages("toy", torch.zeros(1, 1, 2, 2))
    with pytest.raises(ArcvqError, match="toy has 1 images but 2 labels"):
        InMemoryImages("toy", torch.zeros(1, 1, 2, 2, dtype=torch.uint8), torch.zeros(2))
    with pytest.raises(ArcvqError, match="toy has no images"):
        InMemoryImages("toy", torch.zeros(0, 1, 2, 2, dtype=torch.uint8)).pixel_variance()


def test_load_images_refuses_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(ArcvqError, match="unknown data set 'imagenet'; choose one of sample, mnist"):
        load_images("imagenet", split="train")
    with pytest.raises(ArcvqError, match="unknown split 'valid'; use 'train' or 'test'"):
        load_images("sample", split="valid")  # type: ignore[arg-type]
    with pytest.raises(ArcvqError, match="the split all is for folder:PATH"):
        load_images("sample", split="all")
    with pytest.raises(ArcvqError, match="limit is 0"):
        load_images("sample", split="train", limit=0)
    with pytest.raises(ArcvqError, match="image_size is 0"):
        load_images("sample", split="train", image_size=0)
    with pytest.raises(ArcvqError, match="folder: needs a path"):
        load_images("folder:", split="train")
    assert data_names() == ["sample", "mnist", "fashion-mnist", "cifar10", "photos", "folder:PATH", "shards:PATH"]


def test_hold_out_splits_off_last_images() -> None:
    pixels = torch.arange(5, dtype=torch.uint8).view(5, 1, 1, 1)
    rest, held = hold_out(InMemoryImages("five", pixels, torch.arange(5)), 2)
    assert (rest.pixels.flatten().tolist(), held.pixels.flatten().tolist()) == ([0, 1, 2], [3, 4])
    assert rest.labels is not None
    assert held.labels is not None
    assert (rest.labels.tolist(), held.labels.tolist()) == ([0, 1, 2], [3, 4])
    assert hold_out(InMemoryImages("five", pixels), 1)[1].labels is None
    with pytest.raises(ArcvqError, match="it must be from 1 to 4"):
        hold_out(InMemoryImages("five", pixels), 5)
