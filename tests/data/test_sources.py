"""Sources give the same batches from any start, on any number of processes, from memory and from files."""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from arcvq import ArcvqError
from arcvq.data import (
    Augmentation,
    FolderImages,
    ImageSource,
    InMemoryImages,
    ShardOptions,
    Source,
    TensorSource,
    load_images,
    load_sources,
    write_png,
    write_shards,
)
from arcvq.data.augment import draw_augmentation, random_bits

CLASSES = ("cat", "dog", "owl")
COUNT, SIDE = 11, 8
BOTH = Augmentation(flip=True, crop=5)


def pixels() -> Tensor:
    return torch.randint(0, 256, (COUNT, 3, SIDE, SIDE), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """COUNT images below train/, in three classes."""
    root = tmp_path_factory.mktemp("images")
    for index, image in enumerate(pixels()):
        write_png(root / "train" / CLASSES[index * 3 // COUNT] / f"{index:02d}.png", image)
    for index in range(3):
        write_png(root / "test" / CLASSES[index] / "0.png", torch.zeros(3, SIDE, SIDE, dtype=torch.uint8))
    return root


@pytest.fixture
def from_files(path: Path) -> FolderImages:
    images = load_images(f"folder:{path}", split="train", memory=0)
    assert isinstance(images, FolderImages)
    return images


@pytest.fixture
def in_memory(path: Path) -> InMemoryImages:
    images = load_images(f"folder:{path}", split="train")
    assert isinstance(images, InMemoryImages)
    assert torch.equal(images.pixels, pixels())
    return images


@pytest.fixture(params=["tensors", "memory", "files", "memory, augmented", "files, augmented"])
def source(request: pytest.FixtureRequest, from_files: FolderImages, in_memory: InMemoryImages) -> Source:
    if request.param == "tensors":
        return TensorSource({"image": in_memory.pixels, "label": torch.arange(COUNT)}, 4)
    images = in_memory if "memory" in request.param else from_files
    return ImageSource(images, 4, BOTH if "augmented" in request.param else None)


def fetch_batches(source: Source, count: int, *, seed: int = 3, **options: Any) -> list[dict[str, Tensor]]:
    """The first `count` batches as a task sees them."""
    return [dict(source.fetch(batch)) for batch in islice(source.batches(seed=seed, **options), count)]


def same_batch(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_batches_are_equal_from_any_start(source: Source) -> None:
    assert source.batches_per_epoch == 3
    batches = fetch_batches(source, 8)
    assert [len(batch["image"]) for batch in batches] == [4, 4, 3, 4, 4, 3, 4, 4]
    assert [source.samples_in_batch(number) for number in range(8)] == [4, 4, 3, 4, 4, 3, 4, 4]
    for first in (1, 2, 3, 7):
        assert all(
            same_batch(*pair)
            for pair in zip(fetch_batches(source, 8 - first, first=first), batches[first:], strict=True)
        )


def test_each_epoch_has_every_sample_once_in_new_order(in_memory: InMemoryImages) -> None:
    source = TensorSource({"label": torch.arange(COUNT)}, 4)
    epochs = [torch.cat([batch["label"] for batch in fetch_batches(source, 3, first=first)]) for first in (0, 3)]
    assert all(epoch.sort().values.tolist() == list(range(COUNT)) for epoch in epochs)
    assert not torch.equal(*epochs)
    assert not torch.equal(epochs[0], torch.cat([batch["label"] for batch in fetch_batches(source, 3, seed=4)]))


@pytest.mark.parametrize("kind", ["memory", "files"])
def test_labels_match_their_images(kind: str, from_files: FolderImages, in_memory: InMemoryImages) -> None:
    by_image = {image.numpy().tobytes(): index * 3 // COUNT for index, image in enumerate(pixels())}
    for batch in fetch_batches(ImageSource(in_memory if kind == "memory" else from_files, 4), 5):
        assert batch["image"].dtype == torch.uint8
        assert batch["label"].dtype == torch.int64
        assert batch["label"].tolist() == [by_image[image.numpy().tobytes()] for image in batch["image"]]


def test_images_without_classes_have_no_labels() -> None:
    (batch,) = fetch_batches(ImageSource(InMemoryImages("plain", pixels()), 4), 1)
    assert batch.keys() == {"image"}


def test_parts_of_two_processes_make_up_each_batch(source: Source) -> None:
    parts = [fetch_batches(source, 7, rank=rank, world=2) for rank in range(2)]
    for whole, first, second in zip(fetch_batches(source, 7), *parts, strict=True):
        assert same_batch(whole, {name: torch.cat([first[name], second[name]]) for name in whole})


def test_files_and_memory_give_same_batches(from_files: FolderImages, in_memory: InMemoryImages) -> None:
    for options in (None, Augmentation(flip=True), Augmentation(crop=5), BOTH):
        pairs = zip(*(fetch_batches(ImageSource(each, 4, options), 7) for each in (from_files, in_memory)), strict=True)
        assert all(same_batch(*pair) for pair in pairs)


def epoch_images(
    images: InMemoryImages, options: Augmentation, batch_size: int, epoch: int = 0, seed: int = 3
) -> Tensor:
    source = ImageSource(images, batch_size, options)
    count = source.batches_per_epoch
    return torch.cat([batch["image"] for batch in fetch_batches(source, count, first=epoch * count, seed=seed)])


@pytest.mark.parametrize("options", [Augmentation(flip=True), Augmentation(crop=5), BOTH], ids=["flip", "crop", "both"])
def test_augmentation_depends_only_on_seed_epoch_and_image(options: Augmentation) -> None:
    size, index = (SIDE, SIDE), torch.randperm(40)
    first, again = (
        draw_augmentation(options, size, 3, 1, torch.arange(40)),
        draw_augmentation(options, size, 3, 1, index),
    )
    assert all(torch.equal(first[name][index], again[name]) for name in first)
    for seed, epoch in ((3, 2), (4, 1), (1, 3)):
        other = draw_augmentation(options, size, seed, epoch, torch.arange(40))
        assert all(not torch.equal(first[name], other[name]) for name in first)
    images = InMemoryImages("plain", pixels())
    assert torch.equal(epoch_images(images, options, batch_size=4), epoch_images(images, options, batch_size=3))


def test_flips_and_crops_are_uniform() -> None:
    draws = draw_augmentation(BOTH, (SIDE, 2 * SIDE), 3, 0, torch.arange(12_000))
    assert draws["flip"].double().mean() == pytest.approx(0.5, abs=0.02)
    for name, places in (("top", 4), ("left", 12)):
        shares = draws[name].bincount(minlength=places) / 12_000
        assert shares.shape == (places,)
        assert shares.sub(1 / places).abs().max() < 0.02
    together = torch.stack([draws[name].double() for name in ("flip", "top", "left")])
    assert torch.corrcoef(together).fill_diagonal_(0).abs().max() < 0.05


def test_random_bits_equal_splitmix64() -> None:
    """SplitMix64 in Python integers, with the key from NumPy's seed sequence."""
    key, expected = int(np.random.SeedSequence([1, 2, 0]).generate_state(1, np.uint64)[0]), []
    for index in range(3):
        bits = (key + (index + 1) * 0x9E3779B97F4A7C15) % 2**64
        bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB % 2**64
        expected.append(bits ^ (bits >> 31))
    bits = random_bits(1, 2, 0, np.arange(3))
    assert bits.dtype == np.uint64
    assert bits.tolist() == expected


def test_augmented_images_are_crops_of_originals() -> None:
    images = InMemoryImages("plain", pixels(), torch.arange(COUNT))
    for batch in fetch_batches(ImageSource(images, 4, BOTH), 3):
        for cut, index in zip(batch["image"], batch["label"].tolist()):
            places = pixels()[index].unfold(1, 5, 1).unfold(2, 5, 1).movedim(0, 2).flatten(0, 1)  # (16, 3, 5, 5)
            assert any(torch.equal(cut, each) or torch.equal(cut, each.flip(-1)) for each in places)


def test_image_size_is_that_of_batches() -> None:
    images = InMemoryImages("plain", pixels())
    assert (ImageSource(images, 4).channels, ImageSource(images, 4).image_size) == (3, (SIDE, SIDE))
    assert ImageSource(images, 4, BOTH).image_size == (5, 5)
    assert fetch_batches(ImageSource(images, 4, BOTH), 1)[0]["image"].shape == (4, 3, 5, 5)


@pytest.mark.parametrize("crop", [9, 12])
def test_crop_larger_than_image_is_refused(crop: int) -> None:
    images = InMemoryImages("plain", torch.zeros(2, 1, SIDE, 10, dtype=torch.uint8))
    with pytest.raises(ArcvqError, match=f"crop is {crop}, but the images are 8×10"):
        ImageSource(images, 4, Augmentation(crop=crop))


@pytest.mark.parametrize("holdout", [None, 10])
def test_evaluation_images_have_crop_size(holdout: int | None) -> None:
    source, evaluation = load_sources(
        "sample", batch_size=4, limit=8, holdout=holdout, evaluation_images=6, augmentation=BOTH
    )
    assert (source.length, evaluation.length) == (8, 6)
    assert source.image_size == evaluation.image_size == (5, 5)
    assert evaluation.augmentation is None


def test_held_out_images_come_from_the_training_set() -> None:
    source, evaluation = load_sources("sample", batch_size=4, holdout=10, limit=20, evaluation_images=5)
    train = load_images("sample", split="train")
    assert torch.equal(source.images.gather(torch.arange(20)), train.gather(torch.arange(20)))
    assert torch.equal(evaluation.images.gather(torch.arange(5)), train.gather(len(train) - 10 + torch.arange(5)))


@pytest.mark.parametrize("tensors", [{}, {"x": torch.zeros(0, 2)}, {"x": torch.zeros(3), "y": torch.zeros(4)}])
def test_tensors_of_unequal_length_are_refused(tensors: dict[str, Tensor]) -> None:
    with pytest.raises(ArcvqError, match="tensors of equal length"):
        TensorSource(tensors, 4)


def test_resident_source_yields_indices(in_memory: InMemoryImages) -> None:
    source = ImageSource(in_memory, 4, BOTH).to(torch.device("cpu"))
    batch = next(source.batches(seed=3))
    assert batch.keys() == {"index", "flip", "top", "left"}  # the pixels stay where they are
    assert source.resident
    assert not any(tensor.is_floating_point() for tensor in batch.values())


class DecodeCounter:
    """Counts the images that are decoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        decode = FolderImages.decode

        def counted(images: FolderImages, *arguments: Any) -> Tensor:
            self.count += 1
            return decode(images, *arguments)

        monkeypatch.setattr(FolderImages, "decode", counted)


@pytest.fixture
def decode_counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DecodeCounter:
    monkeypatch.setenv("ARCVQ_CACHE", str(tmp_path / "cache"))
    return DecodeCounter(monkeypatch)


def test_pixel_variance_of_files_is_cached(from_files: FolderImages, decode_counter: DecodeCounter) -> None:
    expected = ((pixels().double() / 127.5) - 1).var(correction=0).item()
    first = ImageSource(from_files, 4).pixel_variance()
    assert first == pytest.approx(expected, rel=1e-12)
    assert decode_counter.count == COUNT
    assert ImageSource(from_files, 2, BOTH).pixel_variance() == first
    assert decode_counter.count == COUNT


def test_changed_files_or_size_recompute_variance(
    from_files: FolderImages, decode_counter: DecodeCounter, tmp_path: Path
) -> None:
    copies = [tmp_path / f"{index:02d}.png" for index in range(2)]
    for path, image in zip(copies, pixels()):
        write_png(path, image)

    def images(image_size: int | None = None) -> FolderImages:
        side = image_size or SIDE
        return FolderImages("folder", copies, channels=3, image_size=image_size, height=side, width=side)

    before = images().pixel_variance()
    assert images(4).pixel_variance() != before
    assert decode_counter.count == 4
    write_png(copies[1], torch.zeros(3, SIDE, SIDE, dtype=torch.uint8))
    assert images().pixel_variance() != before
    assert decode_counter.count == 6


@pytest.mark.parametrize("content", ["", "[]", '{"pixel_variance": "wide"}', '{"pixel_variance": NaN}'])
def test_damaged_variance_cache_is_recomputed(
    content: str, from_files: FolderImages, decode_counter: DecodeCounter, tmp_path: Path
) -> None:
    first = from_files.pixel_variance()
    (file,) = (tmp_path / "cache").glob("variance/*.json")
    whole = file.read_text()
    file.write_text(content)
    assert from_files.pixel_variance() == first
    assert (decode_counter.count, file.read_text()) == (2 * COUNT, whole)


def test_variance_is_recomputed_without_cache_folder(
    from_files: FolderImages, decode_counter: DecodeCounter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ARCVQ_CACHE", str(tmp_path / "file"))
    assert from_files.pixel_variance() == from_files.pixel_variance()
    assert decode_counter.count == 2 * COUNT


def test_files_are_augmented_on_their_device(from_files: FolderImages) -> None:
    for options in (Augmentation(flip=True), Augmentation(crop=5), BOTH):
        source = ImageSource(from_files.to("meta"), 4, options)
        assert fetch_batches(source, 1)[0]["image"].device.type == "meta"


@pytest.fixture(params=["folder", "shards"])
def wide_set(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, list[Tensor]]:
    """The name of a set of images of which each is twice as wide as high, or as high as wide, and those it trains on."""
    generator = torch.Generator().manual_seed(4)
    images = []
    for index in range(6):
        size = (12, 24) if index % 2 else (24, 12)
        images.append(torch.randint(0, 256, (3, *size), dtype=torch.uint8, generator=generator))
        write_png(tmp_path / "images" / "train" / f"{index}.png", images[-1])
        write_png(tmp_path / "images" / "test" / f"{index}.png", images[-1])
    if request.param == "shards":
        write_shards(tmp_path / "images", tmp_path / "shards", ShardOptions(size=12, crop=False, format="png"))
    return f"{request.param}:{tmp_path / request.param.replace('folder', 'images')}", images


def test_crops_of_files_come_from_anywhere_in_the_image(wide_set: tuple[str, list[Tensor]]) -> None:
    name, images = wide_set
    crop, seed, number = 10, 3, 40
    source, evaluation = load_sources(name, batch_size=6, image_size=12, augmentation=Augmentation(crop=crop))
    assert (source.image_size, evaluation.image_size, source.resident) == ((crop, crop), (crop, crop), False)
    beside = set()
    for epoch, batch in enumerate(fetch_batches(source, number, seed=seed)):
        order = next(part for at, part in source.index_batches(seed=seed, first=epoch, rank=0, world=1) if at == epoch)
        bits = [random_bits(seed, epoch, stream, order.numpy()) for stream in (1, 2)]
        for position, index in enumerate(order.tolist()):
            rows, columns = (side - crop + 1 for side in images[index].shape[1:])
            top, left = int(bits[0][position] % rows), int(bits[1][position] % columns)
            assert torch.equal(batch["image"][position], images[index][:, top : top + crop, left : left + crop])
            beside.add(max(top, left))
    assert beside == set(range(15))  # 24 - 10 and less: also where the centre square is not
    resumed = fetch_batches(source, 3, seed=seed, first=7)
    assert all(same_batch(*pair) for pair in zip(resumed, fetch_batches(source, 10, seed=seed)[7:]))


@pytest.mark.parametrize("wide_set", ["folder"], indirect=True)
def test_an_image_that_stands_in_is_cropped_where_the_other_would_have_been(wide_set: tuple[str, list[Tensor]]) -> None:
    name, images = wide_set
    options: dict[str, Any] = {"batch_size": 6, "image_size": 12, "augmentation": Augmentation(crop=12)}
    source = load_sources(name, on_error="skip", **options)[0]
    (Path(name.removeprefix("folder:")) / "train" / "2.png").write_bytes(b"no image")
    order = next(source.index_batches(seed=3, first=0, rank=0, world=1))[1].tolist()
    left = int(random_bits(3, 0, 2, np.array([2]))[0] % 13)  # of image 2, which image 3 stands in for
    crop = fetch_batches(source, 1)[0]["image"][order.index(2)]
    assert torch.equal(crop, images[3][:, :, left : left + 12])
    assert source.skipped is not None
    assert len(source.skipped) == 1


def test_crops_of_files_with_held_out_images_come_from_anywhere_too(wide_set: tuple[str, list[Tensor]]) -> None:
    options: dict[str, Any] = {"batch_size": 4, "image_size": 12, "augmentation": Augmentation(crop=10)}
    source, evaluation = load_sources(wide_set[0], holdout=2, **options)
    assert (source.length, source.resident) == (4, False)
    assert (evaluation.length, evaluation.image_size) == (2, (10, 10))
    places = {batch["image"][0].sum().item() for batch in fetch_batches(source, 60)}
    assert len(places) > 4 * 9  # more than the 3 × 3 places of four centre squares
